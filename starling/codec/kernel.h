// on_best_isa(work): runs a loop compiled for this processor's vector unit (optim/isa_dispatch.h); and what loops share.
// `work` is a lambda marked STARLING_KERNEL.
#pragma once

#include <cstddef>

#include "starling/base/check.h"
#include "starling/optim/isa_dispatch.h"

#define STARLING_KERNEL __attribute__((always_inline))

namespace starling {

template <typename Work>
void on_best_isa(const Work& work) {
  dispatch(best_isa(), work);
}

// How decode and decode_add put a value into place: one loop for both.
struct Assign {
  STARLING_INLINE void operator()(float& to, float value) const { to = value; }
};
struct AddScaled {
  float scale;
  STARLING_INLINE void operator()(float& to, float value) const { to += scale * value; }
};

// The check that opens every encode: a short buffer is a bug of the caller.
inline void check_room(size_t room, size_t needed) {
  STARLING_CHECK(room >= needed, "encode into {} bytes, which needs {}", room, needed);
}

}  // namespace starling
