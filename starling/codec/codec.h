// Codec: turns a range of fp32 values (gradients, deltas, weights) into fewer bytes and back, and states its bytes before
// it runs. One codec a file; docs/codecs.md has the table of formulas; make_codec.h makes one from a word.
//
// Bytes: a message has no header but what its codec's file describes; numbers are little-endian. Its length and the
// count of values are known to both sides.
// Hostile bytes: decode and decode_add throw CommError for a message that cannot be one of `out.size()` values, before
// they read or write out of bounds; `out` may then hold a part of it.
// Not finite: a NaN or infinity in `in` is never dropped silently. It arrives as something that is not finite, in its own
// place (none, fp16, bf16, prune), all over its block (int8, 1bit) or its matrix (lowrank), or everywhere (threshold).
// Threads: encode is for one thread at a time; decode and decode_add may run beside it and each other.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace starling {

// Where a matrix lies in the range that a codec gets: the tensors one after another, row-major. A vector is {1, n}.
struct TensorShape {
  size_t rows = 1;
  size_t cols = 0;
  size_t padding =
      0;  // elements after it that mean nothing: not sent where the codec knows shapes, decoded as zeros
  size_t size() const { return rows * cols; }
  bool operator==(const TensorShape&) const = default;
};

// What a checkpoint keeps of a codec or an ErrorFeedback, by name.
using CodecState = std::map<std::string, std::vector<float>>;

class AveragingCodec;

class Codec {
 public:
  virtual ~Codec() = default;

  // The name in tables: "int8".
  virtual std::string name() const = 0;
  // Whether every message of `count` values has exactly encoded_bytes(count) bytes.
  virtual bool fixed_rate() const = 0;
  // The bytes of a message of `count` values: exact where fixed_rate(), else the most it can be.
  virtual size_t encoded_bytes(size_t count) const = 0;

  // Writes the message of `in` to the front of `out`, which has at least encoded_bytes(in.size()) bytes and does not
  // overlap `in`. Returns its exact length.
  virtual size_t encode(std::span<const float> in, std::span<std::byte> out) = 0;
  // out = the decoded values; `in` is a whole message, of out.size() values.
  virtual void decode(std::span<const std::byte> in, std::span<float> out) const = 0;
  // out += scale * the decoded values. Bytes that stand for many zeros cost nothing.
  virtual void decode_add(std::span<const std::byte> in, std::span<float> out, float scale = 1.0f) const = 0;

  // What is carried from one encode to the next; empty for most.
  virtual CodecState state() const { return {}; }
  // Errors: Error(kCheckpoint) naming what does not fit.
  virtual void load_state(const CodecState& state);

  // Not null: ranks may average without gathering their messages.
  virtual AveragingCodec* averaging() { return nullptr; }
};

// A codec whose message is, step by step, linear in its input once the ranks share what was computed before: sums of
// messages mean something, so that an all-reduce of a small array replaces the all-gather of p messages.
class AveragingCodec {
 public:
  // Replaces each element by its mean over the ranks; blocks.
  using Mean = std::function<void(std::span<float>)>;
  virtual ~AveragingCodec() = default;
  // Replaces `data` by the decoded mean over all ranks, equal on all of them. `own`, empty or as long as `data`, receives
  // what this rank contributed to it, for error feedback. Every rank calls `mean` equally often, with equal lengths;
  // together these are encoded_bytes(data.size()) / 4 elements.
  virtual void average(std::span<float> data, std::span<float> own, const Mean& mean) = 0;
};

}  // namespace starling
