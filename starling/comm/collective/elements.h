// What the collectives between hosts do with the elements that they move: cutting a tensor into parts and adding parts.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "starling/comm/types.h"
#include "starling/net/endpoint.h"

namespace starling {

struct Elements {
  DataType type = DataType::kFp32;
  ReduceOp op = ReduceOp::kSum;
  int divisor = 1;  // of a sum
};

// `count` elements at `data` as `parts` parts, one after another, cut at multiples of 64 bytes from the first; the last
// may be shorter, or empty.
std::vector<Bytes> divide(void* data, size_t count, DataType type, int parts);

// out = sources[0] ⊕ sources[1] ⊕ …, in that order, `bytes` each. `out` may be one of the sources. The divisor is applied
// where `last`: in the step that makes the result.
void reduce_parts(std::span<const void* const> sources, void* out, size_t bytes, const Elements& elements,
                  bool last);

// to = first ⊕ second.
void add_parts(const void* first, const void* second, void* to, size_t bytes, const Elements& elements,
               bool last);

}  // namespace starling
