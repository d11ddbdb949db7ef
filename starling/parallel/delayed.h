// Delayed: a strategy whose computation takes longer than it does (train.emulate): after forward and backward the rank sleeps
// for (f − 1) times what they took. f is the factor of a slow rank, times the jitter's where the step is hit, which is a
// function of (seed, rank, step).
#pragma once

#include "starling/base/clock.h"
#include "starling/parallel/strategy.h"
#include "starling/spec/emulation.h"

namespace starling {

class Delayed final : public Strategy {
 public:
  // inner and clock outlive this.
  Delayed(Strategy& inner, const Emulation& emulation, int rank, uint64_t seed, const Clock& clock);

  // The factor of a step.
  double factor(int64_t step) const;

  void begin_step(const Step& step) override;
  double forward_backward(const Batch& batch) override;
  StepReport update() override;
  void consensus() override { inner_.consensus(); }
  StrategyState state() override { return inner_.state(); }
  void load_state(const StrategyState& state) override { inner_.load_state(state); }

 private:
  Strategy& inner_;
  Emulation emulation_;
  int rank_;
  uint64_t seed_;
  const Clock& clock_;
  int64_t step_ = 0;
  double slept_s_ = 0;
};

}  // namespace starling
