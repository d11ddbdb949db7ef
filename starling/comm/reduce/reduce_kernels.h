// Element-wise reduction of several buffers, in the order of the sources: the arithmetic of all collectives.
//
//   destination_k[i] = (source_0[i] ⊕ source_1[i] ⊕ … ⊕ source_{p-1}[i]) / divisor  (i < count)
//
// fp32 and fp64 are reduced as they are. bf16 and fp16 are accumulated in fp32 and rounded to nearest even
// once. Integers of 8 and 16 bits are accumulated in 32 bits, then truncated. Sums of integers wrap around. A
// division of integers truncates. Minimum and maximum propagate NaN. Bitwise operations are for integers
// only. The result is a function of the p elements. It does not depend on the instruction set, the alignment,
// or the cuts of a buffer.
//
// A destination may be one of the sources (same address, same length). Otherwise buffers must not overlap.
// The functions are pure. Non-temporal stores end with a store fence, so a later release store publishes the
// result.
#pragma once

#include <cstddef>
#include <span>

#include "starling/base/isa.h"
#include "starling/comm/types.h"

namespace starling {

// Returns whether a core of this processor reads and writes two pages side by side faster than one after the
// other. Intel's processors prefetch within a page only, so two streams have twice as many accesses under
// way.
bool two_pages_at_once();

// Reduction holds the arguments of a reduction.
struct Reduction {
  std::span<const void* const> sources;
  std::span<void* const> destinations;
  size_t count = 0;  // elements
  DataType type = DataType::kFp32;
  ReduceOp op = ReduceOp::kSum;  // kAvg is kSum with divisor = the number of sources
  int divisor = 1;               // applied after a sum only
  bool stream = false;           // sums: use non-temporal stores if the destinations are aligned to 64 bytes
  // Sums: whether to work on two pages side by side.
  bool pages_side_by_side = two_pages_at_once();
};

// Returns the operation for a part of an average whose sum is divided elsewhere.
constexpr ReduceOp summed(ReduceOp op) {
  return op == ReduceOp::kAvg ? ReduceOp::kSum : op;
}

// Computes the reduction with the kernel of `isa`.
void reduce(const Reduction& job, Isa isa = best_isa());

// Computes the reduction element by element, in scalar code that shares nothing with the kernels. Tests use
// it as the reference.
void reduce_naive(const Reduction& job);

// Scalar conversions, which round to nearest even. They are too slow for inner loops.

// Returns a bf16 number as a float.
float bf16_to_float(uint16_t bits);
// Returns the nearest bf16 number.
uint16_t float_to_bf16(float value);
// Returns an fp16 number as a float.
float fp16_to_float(uint16_t bits);
// Returns the nearest fp16 number.
uint16_t float_to_fp16(float value);

}  // namespace starling
