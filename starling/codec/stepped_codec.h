// SteppedCodec is the base class of codecs whose messages depend on the step: on its random decisions
// (random_codec.h), or on a warm-up (dgc.cc).
//
// The step counts the messages of a range, beginning at 1, and is equal on all ranks. The caller sets it
// before each message (compressed_all_reduce.h, coded_reduce_scatter.h). Servers set the step of a
// RandomCodec, and refuse every other SteppedCodec (server/value_coder.h). Checkpoints hold the step as the
// state of the codec, or as the step of the training.
#pragma once

#include <cstdint>

#include "starling/codec/codec.h"

namespace starling {

// The base class. One thread at a time calls set_step(), and no call of the codec runs at that time.
class SteppedCodec : public Codec {
 public:
  // Sets the step of the messages that follow.
  virtual void set_step(uint64_t step) { step_ = step; }
  // Returns the step of the last message, or 0.
  uint64_t step() const { return step_; }

  SteppedCodec* stepped() final { return this; }
  // Returns {"step": {low 24 bits, next 24 bits}}, so that floats hold both exactly.
  // A stepped codec keeps nothing else, because the codecs of parts have no state of their own in
  // checkpoints.
  CodecState state() const final;
  // Errors: Error(kCheckpoint) if `state` is not of this form.
  void load_state(const CodecState& state) final;

 private:
  uint64_t step_ = 0;
};

}  // namespace starling
