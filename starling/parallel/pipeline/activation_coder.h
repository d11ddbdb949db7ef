// ActivationCoder encodes activations and their gradients for transport between the stages of a model
// (pipeline.activations).
//
// Values are sent unchanged or in 16 or 8 bits (codec/fp16.h, codec/bf16.h, codec/int8.h). With
// "calibrated-int8" the ranges of 8-bit values come from the first steps (pipeline/cut_ranges.h,
// codec/symmetric_int8.h). Tensors that are not floating point (tokens, masks) are sent unchanged. There is
// no error feedback, because an activation belongs to its micro-batch alone. The gradient passes the rounding
// unchanged (the straight-through estimator of Bengio et al. 2013, arXiv 1308.3432).
//
//   bytes of n values:   none  n · element size    fp16, bf16  2 n    int8  n + 4 ⌈n / 256⌉
//                        calibrated-int8  n, and n · element size in the steps of a calibration
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "starling/codec/codec.h"
#include "starling/parallel/pipeline/cut_ranges.h"

namespace starling {

// How activations travel between stages.
struct ActivationSettings {
  // none, fp16, bf16, int8, calibrated-int8, or any other codec that needs no shapes and whose messages have
  // a fixed length.
  std::string word = "none";
  CalibrationOptions calibration = {};  // of calibrated-int8
};

// Encodes and decodes tensors. Values are coded as fp32: bf16 and fp64 tensors are converted before and
// after. Sender and receiver of a message must name the tensor equally and be in the same step. Not
// thread-safe.
class ActivationCoder {
 public:
  // Errors: those of parse_codec() and make_codec().
  explicit ActivationCoder(const ActivationSettings& settings = {});

  // Starts a step. Messages outside steps are coded with the present ranges, and no range is recorded.
  void begin_step(int64_t step);
  // Ends the step.
  void end_step();

  // Returns the message of a contiguous tensor. The message is contiguous. It is `tensor` itself if the
  // tensor is sent unchanged.
  at::Tensor encode(const at::Tensor& tensor, const CutTensor& of);
  // Returns uninitialized memory for the message of a tensor of these sizes.
  at::Tensor empty_message(at::IntArrayRef sizes, at::ScalarType type, const CutTensor& of) const;
  // Returns the tensor that `message` encodes.
  at::Tensor decode(const at::Tensor& message, at::IntArrayRef sizes, at::ScalarType type,
                    const CutTensor& of);

  // The ranges of calibrated-int8, or null.
  CutRanges* ranges() { return ranges_ ? &*ranges_ : nullptr; }
  // The number of values that encode() has written with a calibrated range in the last step.
  uint64_t ranged_values() const { return ranged_; }
  // How many of these values were beyond their range.
  uint64_t saturated_values() const { return saturated_; }

 private:
  float range_of(at::ScalarType type, const CutTensor& of) const;
  void record(const at::Tensor& exact, const CutTensor& of);

  std::unique_ptr<Codec> codec_;     // null: none, or calibrated-int8
  std::optional<CutRanges> ranges_;  // only with calibrated-int8
  bool in_step_ = false;
  uint64_t ranged_ = 0, saturated_ = 0;
};

}  // namespace starling
