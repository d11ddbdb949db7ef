// Checks whether a run would accept more flags, and quotes words of commands that people copy.
#pragma once

#include <string>

#include "starling/spec/run_spec.h"

namespace starling {

// Returns true if `starling train` accepts `flags` in addition to the configuration `spec`. It accepts them
// if each flag exists, its value is allowed, and validate() throws nothing for the result. `flags` is a
// command line whose words hold no spaces.
bool accepts_flags(const RunSpec& spec, const std::string& flags);

// Returns `text` as one word of a POSIX shell: unchanged if the shell reads it unchanged, otherwise between
// single quotes.
std::string shell_word(const std::string& text);

}  // namespace starling
