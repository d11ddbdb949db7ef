// error_of: what a call that must be refused says.
#pragma once

#include <concepts>
#include <string>

#include "starling/base/error.h"

namespace starling {

// The message of the E that `call` throws, "" where it throws none. What is not an E passes through.
template <class E = Error, std::invocable Call>
std::string error_of(Call&& call) {
  try {
    call();
  } catch (const E& error) {
    return error.what();
  }
  return "";
}

}  // namespace starling
