// ActivationCoder: how activations and their gradients are written to travel between the stages of a model
// (pipeline.activations): as they are, or in 16 or 8 bits (codec/fp16.h, bf16.h, int8.h). What is not floating point (tokens,
// masks) travels as it is. Nothing is fed back: an activation belongs to its micro-batch alone.
//
//   bytes of n values: none  n · their size;   fp16, bf16  2 n;   int8  n + 4 ⌈n / 256⌉
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "starling/codec/codec.h"

namespace starling {

// Values are coded as fp32: tensors of bf16 and fp64 are converted, and converted back. One thread.
class ActivationCoder {
 public:
  // word: none, fp16, bf16, int8, or any codec that needs no shapes and always has the same length.
  explicit ActivationCoder(const std::string& word = "none");

  uint64_t bytes_of(at::ScalarType type, int64_t count) const;
  // The message of a contiguous tensor, of bytes_of() bytes: contiguous, `tensor` itself where it travels as it is.
  at::Tensor encode(const at::Tensor& tensor) const;
  // Memory for the message of a tensor of these sizes, and the tensor that it says.
  at::Tensor empty_message(at::IntArrayRef sizes, at::ScalarType type) const;
  at::Tensor decode(const at::Tensor& message, at::IntArrayRef sizes, at::ScalarType type) const;

 private:
  bool codes(at::ScalarType type) const { return codec_ && at::isFloatingType(type); }

  std::unique_ptr<Codec> codec_;  // null: none
};

}  // namespace starling
