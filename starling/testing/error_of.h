// error_of: the message of the error that a call must throw.
#pragma once

#include <concepts>
#include <string>

#include "starling/base/error.h"

namespace starling {

// Returns the message of the E that `call` throws, or "" if it throws nothing. Other exceptions pass through.
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
