// The file that keeps tuned algorithms: $XDG_CACHE_HOME/starling/tuning, or ~/.cache/starling/tuning
// (docs/reference/collectives.md).
#pragma once

#include <filesystem>
#include <string>

#include "starling/comm/choice/tuning.h"

namespace starling {

// Returns the path of the file. Empty if the environment names no folder.
std::filesystem::path tuning_file();

// Reads the file. The result is empty if the file does not exist. Errors: ConfigError if the file is
// malformed.
Tuning read_tuning(const std::filesystem::path& file);

// Returns the text of the file for GroupOptions::tuning, of which only that of rank 0 counts. So another rank
// ignores a malformed file and gets an empty text. Errors: those of read_tuning(), on rank 0.
std::string tuning_for(int rank, const std::filesystem::path& file);

// Replaces the file atomically. Errors: Error (kInternal) that names the file if it cannot be written.
void write_tuning(const std::filesystem::path& file, const Tuning& tuning);

}  // namespace starling
