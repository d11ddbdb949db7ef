// ValueCoder writes the values of a push or a pull as the body of a message. If the run has a codec (--codec,
// --pull-codec), the values go through it (codec/codec.h). Gradients that a worker pushes use error feedback.
// Weights that a server sends do not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "starling/codec/error_feedback.h"
#include "starling/codec/make_codec.h"
#include "starling/server/server_rendezvous.h"

namespace starling {

// Encodes or decodes the values of one connection. A coder with a codec does only one of the two. T: float or
// double. Not thread-safe.
template <typename T>
class ValueCoder {
 public:
  // Makes a coder of plain values.
  ValueCoder() = default;
  // feedback: whether the coder may use error feedback, if the spec has it. stream: a number that differs
  // between the coders of a run that encode, for random decisions (codec/random_codec.h). Their step is the
  // number of the message, beginning at 1. Errors: ConfigError for a codec other than none with double, and
  // for a SteppedCodec that is no RandomCodec: a decoder does not know the step.
  ValueCoder(const CodecSpec& spec, const std::vector<TensorShape>& shapes, bool feedback,
             uint64_t stream = 0);

  // Returns the body for `values`. It is valid until the next call or a change of `values`.
  std::span<const std::byte> encode(const std::vector<T>& values);
  // Receives the body of `message`. The caller has checked message.count, which is the number of values.
  // Errors: CommError if message.bytes is impossible for this number, or if the body is no message of the
  // codec.
  void receive(Link& link, const ServerMessage& message, std::vector<T>& values);
  // Returns what the next encode() depends on besides its values: the codec's state, then the residual.
  std::vector<float> state() const;
  // Restores state(). values: as many as state() has, from a coder of an equal spec and equal shapes.
  void load_state(std::span<const float> values);
  // Returns ‖residual‖², or 0 without error feedback.
  double residual_squares() const;

  // Returns the bytes of `count` values: exact for codecs of fixed rate, otherwise the upper bound.
  uint64_t bytes_of(size_t count) const;

 private:
  std::unique_ptr<Codec> codec_;  // null: plain values
  std::optional<ErrorFeedback> feedback_;
  uint64_t stream_ = 0;
  std::vector<std::byte> bytes_;
};

}  // namespace starling
