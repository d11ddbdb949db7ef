// The form in which faults leave a run that a program embeds (run/join.h).
#pragma once

namespace starling {

// Rethrows the exception that is being handled. An Error keeps its type. Any other exception becomes an Error
// with its message: kMemory if memory ran out, otherwise kInternal.
[[noreturn]] void rethrow_as_error();

}  // namespace starling
