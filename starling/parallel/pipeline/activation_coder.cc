#include "starling/parallel/pipeline/activation_coder.h"

#include <ATen/ATen.h>

#include "starling/base/check.h"
#include "starling/base/error.h"
#include "starling/codec/make_codec.h"

namespace starling {
namespace {

std::span<std::byte> memory_of(const at::Tensor& message) {
  return {static_cast<std::byte*>(message.data_ptr()), message.nbytes()};
}

}  // namespace

ActivationCoder::ActivationCoder(const std::string& word) {
  const CodecSpec spec = parse_codec(word, "pipeline.activations");
  if (spec.kind == CodecKind::kNone) return;
  codec_ = make_codec(spec);
  if (codec_->random() != nullptr)
    throw ConfigError("pipeline.activations",
                      word + " encodes gradients by random decisions: use none, fp16, bf16 or int8");
  STARLING_CHECK(codec_->fixed_rate(),
                 "activations need a codec with messages of fixed length, and {} has none", word);
}

uint64_t ActivationCoder::bytes_of(at::ScalarType type, int64_t count) const {
  return codes(type) ? codec_->encoded_bytes(static_cast<size_t>(count))
                     : static_cast<uint64_t>(count) * at::elementSize(type);
}

at::Tensor ActivationCoder::encode(const at::Tensor& tensor) const {
  if (!codes(tensor.scalar_type())) return tensor;
  const at::Tensor values = tensor.to(at::kFloat);
  const at::Tensor message = empty_message(tensor.sizes(), tensor.scalar_type());
  const size_t bytes = codec_->encode({values.const_data_ptr<float>(), static_cast<size_t>(values.numel())},
                                      memory_of(message));
  STARLING_CHECK(bytes == message.nbytes(), "the codec wrote {} bytes into a message of {} bytes", bytes,
                 message.nbytes());
  return message;
}

at::Tensor ActivationCoder::empty_message(at::IntArrayRef sizes, at::ScalarType type) const {
  if (!codes(type)) return at::empty(sizes, type);
  return at::empty({static_cast<int64_t>(bytes_of(type, c10::multiply_integers(sizes)))}, at::kByte);
}

at::Tensor ActivationCoder::decode(const at::Tensor& message, at::IntArrayRef sizes,
                                   at::ScalarType type) const {
  if (!codes(type)) return message;
  at::Tensor values = at::empty(sizes, at::kFloat);
  codec_->decode(memory_of(message), {values.mutable_data_ptr<float>(), static_cast<size_t>(values.numel())});
  return values.to(type);
}

}  // namespace starling
