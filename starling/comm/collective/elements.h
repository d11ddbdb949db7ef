// Operations on elements for the collectives between hosts: cutting a tensor into parts and adding parts.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "starling/comm/types.h"
#include "starling/net/endpoint.h"

namespace starling {

// Elements says what the elements are and how they are combined.
struct Elements {
  DataType type = DataType::kFp32;  // of each element
  ReduceOp op = ReduceOp::kSum;     // how elements are combined
  int divisor = 1;                  // a sum is divided by it
};

// Divides `count` elements at `data` into `parts` parts that lie one after another.
// The cuts are at multiples of 64 bytes from the first element. The sizes of the parts differ by at most 64
// bytes, so some parts of a small tensor are empty.
std::vector<Bytes> divide(void* data, size_t count, DataType type, int parts);

// Computes out = sources[0] ⊕ sources[1] ⊕ …, in that order, on `bytes` bytes each. `out` may be one of
// the sources. `last` marks the step that makes the final result. Only this step applies the divisor.
void reduce_parts(std::span<const void* const> sources, void* out, size_t bytes, const Elements& elements,
                  bool last);

// Computes to = first ⊕ second. `last` is as in reduce_parts().
void add_parts(const void* first, const void* second, void* to, size_t bytes, const Elements& elements,
               bool last);

}  // namespace starling
