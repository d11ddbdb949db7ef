// Conversions of one gradient to the type in which it is summed.
#pragma once

#include "starling/base/bfloat16.h"
#include "starling/base/isa_dispatch.h"

namespace starling {

STARLING_INLINE float widen(float x) {
  return x;
}
STARLING_INLINE double widen(double x) {
  return x;
}
STARLING_INLINE float widen(Bf16 x) {
  return to_fp32(x);
}

}  // namespace starling
