// ActivationCoder encodes activations and their gradients for transport between the stages of a model
// (pipeline.activations).
//
// Values are sent unchanged or in 16 or 8 bits (codec/fp16.h, codec/bf16.h, codec/int8.h). Tensors that are
// not floating point (tokens, masks) are sent unchanged. There is no error feedback, because an activation
// belongs to its micro-batch alone.
//
//   bytes of n values:   none  n · element size    fp16, bf16  2 n    int8  n + 4 ⌈n / 256⌉
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "starling/codec/codec.h"

namespace starling {

// Encodes and decodes tensors. Values are coded as fp32: bf16 and fp64 tensors are converted before and
// after. Not thread-safe.
class ActivationCoder {
 public:
  // word: none, fp16, bf16, int8, or any other codec that needs no shapes and whose messages have a fixed
  // length. Errors: those of parse_codec() and make_codec().
  explicit ActivationCoder(const std::string& word = "none");

  // Returns the length in bytes of the message for `count` values.
  uint64_t bytes_of(at::ScalarType type, int64_t count) const;
  // Returns the message of a contiguous tensor. The message is contiguous and has bytes_of() bytes. It is
  // `tensor` itself if the tensor is sent unchanged.
  at::Tensor encode(const at::Tensor& tensor) const;
  // Returns uninitialized memory for the message of a tensor of these sizes.
  at::Tensor empty_message(at::IntArrayRef sizes, at::ScalarType type) const;
  // Returns the tensor that `message` encodes.
  at::Tensor decode(const at::Tensor& message, at::IntArrayRef sizes, at::ScalarType type) const;

 private:
  bool codes(at::ScalarType type) const { return codec_ && at::isFloatingType(type); }

  std::unique_ptr<Codec> codec_;  // null: none
};

}  // namespace starling
