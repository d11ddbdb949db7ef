// A Codec writes a range of fp32 values (gradients, changes or weights) in fewer bytes and reads it back. It
// states its number of bytes before it runs. Each codec has a file of its own. docs/reference/codecs.md has
// the table of formulas, and make_codec.h makes a codec from a word.
//
// Bytes: a message has no header beyond what the file of its codec describes. Numbers are little-endian. Both
// sides know the length of a message and the number of its values.
//
// Hostile bytes: decode and decode_add throw CommError for a message that cannot be one of `out.size()`
// values. They never read or write out of bounds. After an error `out` may hold a part of the message.
//
// Not finite: a codec never drops a NaN or infinity of `in` silently. Some value that is not finite arrives.
// With none, fp16, bf16, prune and dgc, it arrives at the same place. With int8, qsgd and terngrad it fills
// its block. With 1bit it replaces the values of its sign in the block. With lowrank it is within its matrix,
// and with signsgd it fills its tensor. With threshold it is everywhere, and with random-k it is in all
// values that are sent. In a stack such as prune+int8, it fills its block of the values that are sent.
//
// Threads: one thread at a time calls encode. decode and decode_add may run at the same time as encode and
// each other.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace starling {

// The shape of one tensor in the range that a codec encodes. The tensors lie one after another, row-major. A
// vector is {1, n}.
struct TensorShape {
  size_t rows = 1;  // rows; 1 for a vector
  size_t cols = 0;  // elements of a row
  // Elements after the tensor that have no meaning. Codecs that know the shapes do not send them and decode
  // zeros.
  size_t padding = 0;
  // Returns the number of elements, without the padding.
  size_t size() const { return rows * cols; }
  // Compares all fields.
  bool operator==(const TensorShape&) const = default;
};

// What a checkpoint stores of a codec or of an ErrorFeedback, by name.
using CodecState = std::map<std::string, std::vector<float>>;

class AveragingCodec;
class RandomCodec;
class SteppedCodec;

// How the messages of p ranks become one mean (compressed_all_reduce.h, coded_reduce_scatter.h).
enum class Combining {
  kAveraged,   // the codec is an AveragingCodec: its arrays are averaged
  kAdded,      // parts of a range have messages of their own, whose decoded sum is encoded again
  kVoted,      // as kAdded, also with two ranks: only the second encoding gives the result, a vote
  kMerged,     // messages are lists of values; their sum is a longer list, so it is not encoded again
  kCollected,  // a message stands for the whole range: every rank gets the messages of all ranks
};

// The interface of all codecs.
class Codec {
 public:
  virtual ~Codec() = default;

  // Returns the name that configurations and tables use, for example "int8".
  virtual std::string name() const = 0;
  // Returns whether every message of `count` values has exactly encoded_bytes(count) bytes. fixed_rate(),
  // elementwise() and combining() must not depend on the shapes of the tensors: ranks encode parts of the
  // range, and all must call the same collectives.
  virtual bool fixed_rate() const = 0;
  // Returns the number of bytes of a message of `count` values. It is exact if fixed_rate(), and otherwise
  // the upper bound.
  virtual size_t encoded_bytes(size_t count) const = 0;

  // Returns whether each value is encoded by itself. The message of a range is then the messages of its
  // pieces, one after another, wherever the range is cut. Such a codec has a fixed rate and no state.
  virtual bool elementwise() const { return false; }

  // Returns how messages of this codec are combined.
  virtual Combining combining() const = 0;

  // Writes the message of `in` to the front of `out` and returns its exact length. `out` has at least
  // encoded_bytes(in.size()) bytes and does not overlap `in`.
  virtual size_t encode(std::span<const float> in, std::span<std::byte> out) = 0;
  // Writes the decoded values to `out`. `in` is a whole message of out.size() values.
  virtual void decode(std::span<const std::byte> in, std::span<float> out) const = 0;
  // Adds scale * the decoded values to `out`. Codecs of lists (Combining::kMerged) visit only the values that
  // the message contains.
  virtual void decode_add(std::span<const std::byte> in, std::span<float> out, float scale = 1.0f) const = 0;

  // Returns what the codec keeps from one encode to the next. The state is empty for most codecs.
  virtual CodecState state() const { return {}; }
  // Restores a state. Errors: Error(kCheckpoint) that names what does not fit.
  virtual void load_state(const CodecState& state);

  // Returns the codec as an AveragingCodec, or null if ranks have to gather each other's messages to average.
  // The codec owns it.
  virtual AveragingCodec* averaging() { return nullptr; }
  // Returns the codec as a RandomCodec (random_codec.h), or null if its messages depend on no random
  // decisions. The codec owns it. The caller sets a key before each message.
  virtual RandomCodec* random() { return nullptr; }
  // Returns the codec as a SteppedCodec (stepped_codec.h), or null if its messages do not depend on the step.
  // The codec owns it. The caller sets the step before each message.
  virtual SteppedCodec* stepped() { return nullptr; }
};

// AveragingCodec is a codec whose messages can be averaged without being decoded first. Each of its steps is
// linear in the input once the ranks share the results of the steps before. An all-reduce of a small array
// therefore replaces the all-gather of p messages.
class AveragingCodec {
 public:
  // Replaces each element of `array` by its mean over the ranks. `own` is empty or as long as `array`. It
  // receives what this rank contributes to the mean: the array itself, or what remains of it if the elements
  // are rounded. The result is the mean over the ranks of `own`, up to the rounding of fp32. Blocks.
  using Mean = std::function<void(std::span<float> array, std::span<float> own)>;
  virtual ~AveragingCodec() = default;
  // Returns the codec that rounds the elements of the arrays on their way, or null if they travel as fp32. It
  // encodes each element by itself. The codec owns it.
  virtual Codec* rounding() { return nullptr; }
  // Replaces `data` by the decoded mean over all ranks, which is equal on all of them. `own` is empty or as
  // long as `data`. It receives this rank's contribution to the mean, for error feedback. Every rank calls
  // `mean` equally often and with equal lengths. The elements of all calls together have
  // encoded_bytes(data.size()) bytes on their way.
  virtual void average(std::span<float> data, std::span<float> own, const Mean& mean) = 0;
};

}  // namespace starling
