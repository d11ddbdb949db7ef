// ValueCoder: the values of a push or of a pull as the body of a message, through a codec where there is one
// (--codec, --pull-codec; codec/codec.h): gradients that a worker pushes, with error feedback; weights that a server sends,
// without.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "starling/codec/error_feedback.h"
#include "starling/codec/make_codec.h"
#include "starling/server/meeting.h"

namespace starling {

// T: float or double. One thread. A coder encodes, or it decodes.
template <typename T>
class ValueCoder {
 public:
  // Plain values.
  ValueCoder() = default;
  // feedback: what the codec drops is added to the next values (where the spec wants it). ConfigError for double.
  ValueCoder(const CodecSpec& spec, const std::vector<TensorShape>& shapes, bool feedback);

  // The body for `values`, valid until the next call or a change of `values`.
  std::span<const std::byte> encode(const std::vector<T>& values);
  // Receives the body of `message`, which says count values. CommError where its length cannot be.
  void receive(Link& link, const ServerMessage& message, std::vector<T>& values);
  // What the next encode() depends on beside its values: the codec's state and the residual, one after another.
  std::vector<float> state() const;
  // values: as many as state() has, of a coder for the same spec and shapes.
  void load_state(std::span<const float> values);
  // ‖residual‖²; 0 without feedback.
  double residual_squares() const;

  // The bytes of `count` values: exact for codecs of fixed rate, else the most.
  uint64_t bytes_of(size_t count) const;

 private:
  std::unique_ptr<Codec> codec_;  // null: plain
  std::optional<ErrorFeedback> feedback_;
  std::vector<std::byte> bytes_;
};

}  // namespace starling
