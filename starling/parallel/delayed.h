// Delayed: a strategy whose computation takes longer than it does (train.emulate): after forward and backward the rank sleeps
// until f times what they took, or what they are to take at least (compute=…), has passed. f is the factor of a slow rank, times the
// jitter's where the step is hit, which is a function of (seed, rank, step). A rank that sleeps leaves its core to others: that is
// how a few cores stand for many ranks.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "starling/base/clock.h"
#include "starling/comm/group.h"
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

  // Collective. Where the time of a step went, means over the ranks and over all steps but the first three, in seconds:
  //   step_compute_s     forward and backward, sleeping included
  //   step_waiting_s     of the exchange that was not hidden: until the rank that computed longest had come to it
  //   step_exchange_s    the rest of it: bytes under way
  //   step_s             from step to step
  // waiting has a meaning where ranks march in step. And rank_steps_per_s, the sum of the ranks' steps a second: times the
  // samples of a rank's step, the samples/s of all of them, also where they do not march in step; emulation_overrun, the share of
  // steps whose real computation took longer than compute=….
  std::map<std::string, double> times(Group& group) const;

 private:
  Strategy& inner_;
  Emulation emulation_;
  int rank_;
  uint64_t seed_;
  const Clock& clock_;
  int64_t step_ = 0;
  double slept_s_ = 0;
  struct StepTime {
    double begin_s = 0, compute_s = 0, exposed_s = 0, overrun = 0;
  };
  std::vector<StepTime> steps_;
};

}  // namespace starling
