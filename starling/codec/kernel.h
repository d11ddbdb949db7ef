// What the loops of the codecs share: on_best_isa(work) and small helpers.
#pragma once

#include <cstddef>

#include "starling/base/check.h"
#include "starling/base/isa_dispatch.h"

#define STARLING_KERNEL __attribute__((always_inline))

namespace starling {

// Runs a loop that is compiled for this processor's vector unit (base/isa_dispatch.h). `work` is a lambda
// marked STARLING_KERNEL.
template <typename Work>
void on_best_isa(const Work& work) {
  dispatch(best_isa(), work);
}

// Assigns a decoded value. decode and decode_add share one loop and differ in this operation.
struct Assign {
  STARLING_INLINE void operator()(float& to, float value) const { to = value; }
};
// Adds a decoded value times `scale`.
struct AddScaled {
  float scale;
  STARLING_INLINE void operator()(float& to, float value) const { to += scale * value; }
};

// Checks at the start of every encode that the output buffer is large enough. A short buffer is a bug of the
// caller.
inline void check_room(size_t room, size_t needed) {
  STARLING_CHECK(room >= needed, "encode into {} bytes needs {}", room, needed);
}

}  // namespace starling
