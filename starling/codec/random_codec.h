// RandomCodec is the base class of codecs whose messages depend on random decisions.
//
// Every draw is a function of a key (base/keyed_random.h), so a run that resumes makes equal messages. The
// function does not depend on threads, on earlier messages or on the processor.
//
//   key(stream) = key_of(seed, step, stream).         seed: train.seed (CodecSpec::seed).
//   draw i      = mix64(key + i · kGolden).           i: the position of the value in the range of the codec.
//
// stepped_codec.h has the step. The stream differs between two messages of one step, so that their draws are
// independent. compressed_all_reduce.h, coded_reduce_scatter.h and server/value_coder.h choose both.
#pragma once

#include <cstddef>
#include <cstdint>

#include "starling/base/keyed_random.h"
#include "starling/codec/stepped_codec.h"

namespace starling {

// The draws of one message.
class Draws {
 public:
  // key: key_of(seed, step, stream).
  explicit Draws(uint64_t key) : key_(key) {}
  // Returns draw `i`, 64 random bits.
  uint64_t bits(size_t i) const { return mix64(key_ + i * kGolden); }
  // Returns a number in [0, 1) that is made from the upper 24 bits of draw `i`. A float holds it exactly.
  float unit(size_t i) const { return static_cast<float>(bits(i) >> 40) * 0x1p-24f; }

 private:
  uint64_t key_;
};

// The base class. One thread at a time calls set_key(), and no call of the codec runs at that time.
class RandomCodec : public SteppedCodec {
 public:
  // seed: equal on all ranks.
  explicit RandomCodec(uint64_t seed) : seed_(seed) {}

  // Sets the key of the messages that follow.
  void set_key(uint64_t step, uint64_t stream) {
    set_step(step);
    stream_ = stream;
  }

  RandomCodec* random() override { return this; }

 protected:
  // Returns the draws of the present message.
  Draws draws() const { return Draws(key_of(seed_, step(), stream_)); }
  // Returns draws that all messages of the present step share.
  Draws shared_draws() const { return Draws(key_of(seed_, step(), ~uint64_t{0})); }

 private:
  uint64_t seed_;
  uint64_t stream_ = 0;
};

}  // namespace starling
