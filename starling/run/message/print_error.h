// How a program reports the error that ends it.
#pragma once

#include <exception>
#include <span>

namespace starling {

// Returns true if a command line has --json before the first "--".
bool asks_for_json(std::span<const char* const> argv);

// Prints the error to standard error, with '?' in place of control characters, because a message may quote a
// file, and these characters would control the terminal. Prints it, if `json`, as an error event to standard
// output. Returns the exit status of its kind (exit_status.h).
int print_error(bool json, const std::exception& error);

}  // namespace starling
