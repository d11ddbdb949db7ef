#include "starling/server/value_coder.h"

#include <fmt/format.h>

#include <type_traits>

#include "starling/base/error.h"
#include "starling/codec/flat_state.h"
#include "starling/codec/random_codec.h"

namespace starling {

template <typename T>
ValueCoder<T>::ValueCoder(const CodecSpec& spec, const std::vector<TensorShape>& shapes, bool feedback,
                          uint64_t stream)
    : stream_(stream) {
  if (spec.kind == CodecKind::kNone) return;
  if constexpr (!std::is_same_v<T, float>) {
    throw ConfigError("--codec",
                      name_of(spec) + " encodes fp32 values; this run trains in fp64: use --codec none");
  }
  codec_ = make_codec(spec, shapes);
  if (codec_->stepped() != nullptr && codec_->random() == nullptr)
    throw ConfigError("--codec",
                      "codec " + codec_->name() +
                          " depends on the step, which servers do not tell each other: use another "
                          "codec with servers, and set .servers = false in the traits of this codec");
  size_t count = 0;
  for (const TensorShape& shape : shapes) count += shape.size();
  if (feedback && spec.error_feedback) feedback_.emplace(count);
}

template <typename T>
std::span<const std::byte> ValueCoder<T>::encode(const std::vector<T>& values) {
  if constexpr (std::is_same_v<T, float>) {
    if (codec_ && !values.empty()) {
      if (RandomCodec* random = codec_->random()) random->set_key(random->step() + 1, stream_);
      bytes_.resize(codec_->encoded_bytes(values.size()));
      const size_t bytes =
          feedback_ ? feedback_->encode(*codec_, values, bytes_) : codec_->encode(values, bytes_);
      return std::span(bytes_).first(bytes);
    }
  }
  return std::as_bytes(std::span(values));
}

template <typename T>
void ValueCoder<T>::receive(Link& link, const ServerMessage& message, std::vector<T>& values) {
  values.resize(message.count);
  if constexpr (std::is_same_v<T, float>) {
    if (codec_ && message.count > 0) {
      if (message.bytes > codec_->encoded_bytes(message.count))
        expect_bytes(message, codec_->encoded_bytes(message.count), link.peer());
      bytes_.resize(message.bytes);
      link.recv_body(bytes_);
      return codec_->decode(bytes_, values);
    }
  }
  expect_bytes(message, message.count * sizeof(T), link.peer());
  link.recv_body(writable_bytes_of(values));
}

template <typename T>
std::vector<float> ValueCoder<T>::state() const {
  return codec_ ? flat_state(*codec_, feedback_ ? &*feedback_ : nullptr) : std::vector<float>();
}

template <typename T>
void ValueCoder<T>::load_state(std::span<const float> values) {
  if (codec_) load_flat_state(*codec_, feedback_ ? &*feedback_ : nullptr, values);
}

template <typename T>
double ValueCoder<T>::residual_squares() const {
  double squares = 0;
  if (feedback_) {
    for (const float r : feedback_->residual()) squares += static_cast<double>(r) * r;
  }
  return squares;
}

template <typename T>
uint64_t ValueCoder<T>::bytes_of(size_t count) const {
  return codec_ && count > 0 ? codec_->encoded_bytes(count) : count * sizeof(T);
}

template class ValueCoder<float>;
template class ValueCoder<double>;

}  // namespace starling
