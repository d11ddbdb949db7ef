// The version of this program and of what it was built from.
#pragma once

#include <string>

namespace starling {

std::string build_version();  // "0.1.0"
std::string build_commit();   // the commit's hash; "unknown" if the sources were not a git checkout
std::string build_date();     // the commit's date, "2026-11-22"; empty if the commit is unknown

// Returns the text of --version: version, commit, libtorch, compiler, and the instruction sets in use on this
// processor.
std::string version_text();

}  // namespace starling
