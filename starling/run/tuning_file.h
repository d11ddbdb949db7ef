// Where tuned algorithms are kept: $XDG_CACHE_HOME/starling/tuning, else ~/.cache/starling/tuning (docs/communication.md).
#pragma once

#include <filesystem>

#include "starling/comm/tuning.h"

namespace starling {

// Empty where the environment names no folder.
std::filesystem::path tuning_file();

// Empty where there is no file. ConfigError for a file that is none.
Tuning read_tuning(const std::filesystem::path& file);

// Replaces the file in one step. Error(internal) naming it where that is impossible.
void write_tuning(const std::filesystem::path& file, const Tuning& tuning);

}  // namespace starling
