// Element-wise reduction of several buffers, in the order of the sources: the arithmetic of all collectives.
//
//   destination_k[i] = (source_0[i] ⊕ source_1[i] ⊕ … ⊕ source_{p-1}[i]) / divisor       for every k and i < count
//
// fp32 and fp64 are reduced as they are; bf16 and fp16 are accumulated in fp32 and rounded to nearest even once; 8- and 16-bit
// integers are accumulated in 32 bits, then truncated, and integer sums wrap around. A division of integers truncates.
// Minimum and maximum propagate NaN. Bitwise operations are for integers. The result does not depend on the instruction set, the alignment or the way in
// which a buffer is cut: it is a function of the p elements.
//
// A destination may be one of the sources (same address, same length); otherwise buffers do not overlap. Pure functions,
// no state. Non-temporal stores end with a store fence, so a release store afterwards publishes the result.
#pragma once

#include <cstddef>
#include <span>

#include "starling/comm/types.h"

namespace starling {

enum class InstructionSet { kPortable, kAvx2, kAvx512 };

// The widest that this processor has and the build knows.
InstructionSet best_instruction_set();

// Whether a core of this processor reads and writes two pages side by side faster than one after the other. Intel's fetch ahead within
// a page only, so that of two streams twice as much is under way (all-reduce of 1 MB in windows: 34–48 against 50 µs); AMD's Zen 4
// loses (21 against 16).
bool two_pages_at_once();

struct Reduction {
  std::span<const void* const> sources;
  std::span<void* const> destinations;
  size_t count = 0;  // elements
  DataType type = DataType::kFp32;
  ReduceOp op = ReduceOp::kSum;  // kAvg is kSum with divisor = the number of sources
  int divisor = 1;               // applied after a sum only
  bool stream = false;           // non-temporal stores, where the destinations are aligned to 64 bytes
  bool pages_side_by_side = two_pages_at_once();
};

// The operation of a part of an average that is divided elsewhere.
constexpr ReduceOp summed(ReduceOp op) {
  return op == ReduceOp::kAvg ? ReduceOp::kSum : op;
}

void reduce(const Reduction& job, InstructionSet isa = best_instruction_set());

// The same element by element, in scalar code that shares nothing with the kernels: the reference of the tests.
void reduce_naive(const Reduction& job);

// Scalar conversions, round to nearest even. Not for inner loops.
float bf16_to_float(uint16_t bits);
uint16_t float_to_bf16(float value);
float fp16_to_float(uint16_t bits);
uint16_t float_to_fp16(float value);

}  // namespace starling
