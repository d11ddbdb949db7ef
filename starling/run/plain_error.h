// libtorch's exceptions in Starling's words.
#pragma once

#include <c10/util/Exception.h>

#include "starling/base/error.h"

namespace starling {

// The message without libtorch's stack trace; kMemory with a remedy where memory was refused, else kInternal.
Error plain_error(const c10::Error& error);

}  // namespace starling
