// Converts libtorch's exceptions into Starling's errors.
#pragma once

#include <c10/util/Exception.h>

#include "starling/base/error.h"

namespace starling {

// Returns an error with the message of `error` but without libtorch's stack trace. The code is kMemory, with
// a remedy in the message, if an allocation failed. Otherwise it is kInternal.
Error plain_error(const c10::Error& error);

}  // namespace starling
