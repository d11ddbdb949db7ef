// Runs this program as a child process, for commands that consist of runs.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

namespace starling {

// Runs /proc/self/exe with these arguments to its end and returns the line of its {"event":"result", …}.
// Errors: Error with the child's last error message if the child fails or prints no result. TimeoutError if
// the child takes longer than `limit`; the child is ended first.
std::string last_result_of(const std::vector<std::string>& arguments, std::chrono::seconds limit);

// Makes a folder for this process alone in the system's folder for temporary files. Errors: ConfigError.
std::filesystem::path make_private_folder(const std::string& name);

}  // namespace starling
