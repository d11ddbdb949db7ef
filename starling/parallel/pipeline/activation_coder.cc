#include "starling/parallel/pipeline/activation_coder.h"

#include <ATen/ATen.h>

#include "starling/base/check.h"
#include "starling/base/error.h"
#include "starling/codec/make_codec.h"
#include "starling/codec/symmetric_int8.h"
#include "starling/spec/run_spec.h"

namespace starling {
namespace {

std::span<std::byte> memory_of(const at::Tensor& message) {
  return {static_cast<std::byte*>(message.data_ptr()), message.nbytes()};
}

std::span<const float> floats_of(const at::Tensor& floats) {
  return {floats.const_data_ptr<float>(), static_cast<size_t>(floats.numel())};
}

}  // namespace

ActivationCoder::ActivationCoder(const ActivationSettings& settings) {
  const std::string& word = settings.word;
  if (word == kCalibratedInt8) {
    ranges_.emplace(settings.calibration);
    return;
  }
  const CodecSpec spec = parse_codec(word, "pipeline.activations");
  if (spec.kind == CodecKind::kNone) return;
  codec_ = make_codec(spec);
  if (codec_->random() != nullptr)
    throw ConfigError(
        "pipeline.activations",
        word + " encodes gradients by random decisions: use none, fp16, bf16, int8 or " + kCalibratedInt8);
  STARLING_CHECK(codec_->fixed_rate(),
                 "activations need a codec with messages of fixed length, and {} has none", word);
}

void ActivationCoder::begin_step(int64_t step) {
  in_step_ = true;
  ranged_ = saturated_ = 0;
  if (ranges_) ranges_->begin_step(step);
}

void ActivationCoder::end_step() {
  in_step_ = false;
  if (ranges_) ranges_->end_step();
}

// Returns the range with which a tensor is encoded, or 0 if it is encoded without one.
float ActivationCoder::range_of(at::ScalarType type, const CutTensor& of) const {
  return ranges_ && at::isFloatingType(type) ? ranges_->range_of(of) : 0;
}

void ActivationCoder::record(const at::Tensor& exact, const CutTensor& of) {
  if (ranges_ && in_step_ && exact.is_floating_point()) ranges_->record(of, floats_of(exact.to(at::kFloat)));
}

at::Tensor ActivationCoder::empty_message(at::IntArrayRef sizes, at::ScalarType type,
                                          const CutTensor& of) const {
  const int64_t count = c10::multiply_integers(sizes);
  if (range_of(type, of) > 0) return at::empty({count}, at::kByte);
  if (!codec_ || !at::isFloatingType(type)) return at::empty(sizes, type);
  return at::empty({static_cast<int64_t>(codec_->encoded_bytes(static_cast<size_t>(count)))}, at::kByte);
}

at::Tensor ActivationCoder::encode(const at::Tensor& tensor, const CutTensor& of) {
  const at::ScalarType type = tensor.scalar_type();
  const float range = range_of(type, of);
  if (range == 0 && (!codec_ || !at::isFloatingType(type))) {
    record(tensor, of);
    return tensor;
  }
  const at::Tensor values = tensor.to(at::kFloat);
  const at::Tensor message = empty_message(tensor.sizes(), type, of);
  if (range > 0) {
    const size_t beyond = encode_symmetric_int8(floats_of(values), range, memory_of(message));
    ranges_->count(of, static_cast<size_t>(values.numel()), beyond);
    if (in_step_) {
      ranged_ += static_cast<uint64_t>(values.numel());
      saturated_ += beyond;
    }
    return message;
  }
  const size_t bytes = codec_->encode(floats_of(values), memory_of(message));
  STARLING_CHECK(bytes == message.nbytes(), "the codec wrote {} bytes into a message of {} bytes", bytes,
                 message.nbytes());
  return message;
}

at::Tensor ActivationCoder::decode(const at::Tensor& message, at::IntArrayRef sizes, at::ScalarType type,
                                   const CutTensor& of) {
  const float range = range_of(type, of);
  if (range == 0 && (!codec_ || !at::isFloatingType(type))) {
    record(message, of);
    return message;
  }
  at::Tensor values = at::empty(sizes, at::kFloat);
  const std::span<float> to{values.mutable_data_ptr<float>(), static_cast<size_t>(values.numel())};
  if (range > 0)
    decode_symmetric_int8(memory_of(message), range, to);
  else
    codec_->decode(memory_of(message), to);
  return values.to(type);
}

}  // namespace starling
