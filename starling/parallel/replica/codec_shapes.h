// The shapes that a codec sees of tensors in flat memory, and the memory as the values that it takes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <span>
#include <vector>

#include "starling/codec/codec.h"

namespace starling {

// Returns the shapes of tensors that lie one after another in [0, end) of a flat range. The first dimension
// of a tensor gives the rows, and all other dimensions together give the columns. offsets: of each tensor, in
// elements and ascending. What lies between two tensors, and behind the last one, is padding.
std::vector<TensorShape> codec_shapes(const std::vector<at::Tensor>& tensors,
                                      const std::vector<size_t>& offsets, size_t end);

// Returns the elements of a contiguous fp32 tensor. They are valid as long as its memory.
std::span<float> codec_values(const at::Tensor& flat);

}  // namespace starling
