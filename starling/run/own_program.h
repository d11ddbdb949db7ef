// This program as a child process, for commands that consist of runs.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

namespace starling {

// Runs /proc/self/exe with these arguments to its end and returns the line of its {"event":"result", …}. Errors: Error with the
// last words of the child where it fails or prints none; TimeoutError where it takes longer, after having ended it.
std::string last_result_of(const std::vector<std::string>& arguments, std::chrono::seconds limit);

// A folder for this process alone, in the system's folder for such things. Errors: ConfigError.
std::filesystem::path make_private_folder(const std::string& name);

}  // namespace starling
