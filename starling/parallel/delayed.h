// Delayed wraps a strategy and makes its computation take longer (train.emulate). Few cores can so stand for
// many ranks, because a rank that sleeps leaves its core to other ranks.
//
// After forward and backward, the rank sleeps until f · max(t, c) seconds have passed. t is the measured time
// of forward and backward, and c is the time given by `compute=…` (0 if absent). If ranks have unequal shares
// of a batch (data.share), c is the time for an equal share, and a larger share takes longer. f is the factor
// of a slow rank, times the jitter's factor in steps that the jitter hits. Whether it hits is a function of
// (seed, rank, step).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "starling/base/clock.h"
#include "starling/comm/group.h"
#include "starling/parallel/strategy.h"
#include "starling/spec/emulation.h"

namespace starling {

// A strategy that delegates to another one and adds delays. Not thread-safe.
class Delayed final : public Strategy {
 public:
  // inner and clock must outlive this object. equal_share: the number of samples that take the time of
  // `compute=…`; 0 if every batch takes that time.
  Delayed(Strategy& inner, const Emulation& emulation, int rank, uint64_t seed, const Clock& clock,
          double equal_share = 0);

  // The factor f of `step` on this rank.
  double factor(int64_t step) const;

  void begin_step(const Step& step) override;
  double forward_backward(const Batch& batch) override;
  StepReport update() override;
  void consensus() override { inner_.consensus(); }
  void show_average() override { inner_.show_average(); }
  StrategyState state() override { return inner_.state(); }
  void load_state(const StrategyState& state) override { inner_.load_state(state); }
  Replica& evaluated() override { return inner_.evaluated(); }
  int64_t whole_parameters() override { return inner_.whole_parameters(); }
  StrategyStats strategy_stats() override { return inner_.strategy_stats(); }
  std::vector<uint64_t> bytes_from_servers() override { return inner_.bytes_from_servers(); }
  Recoverable* recoverable() override { return inner_.recoverable(); }
  Traced* traced() override { return inner_.traced(); }
  OwnLoop* own_loop() override { return inner_.own_loop(); }

  // Returns where the time of a step went. Collective. Times are in seconds, means over the ranks and over
  // all steps but the first three. The map is empty if fewer than two steps remain.
  //
  //   step_compute_s     forward and backward, including the sleep
  //   step_waiting_s     the part of the exposed exchange spent waiting for the rank that computed longest
  //   step_exchange_s    the rest of the exposed exchange: bytes in transit
  //   step_s             from the start of one step to the start of the next
  //   rank_steps_per_s   the sum over the ranks of their steps per second
  //   emulation_overrun  the share of steps whose real computation took longer than compute=…
  //
  // step_waiting_s has a meaning only if ranks compute in lockstep. rank_steps_per_s times the samples of one
  // rank's step is the throughput in samples/s of all ranks, also if they do not compute in lockstep.
  std::map<std::string, double> times(Group& group) const;

 private:
  Strategy& inner_;
  Emulation emulation_;
  int rank_;
  uint64_t seed_;
  const Clock& clock_;
  double equal_share_;
  int64_t step_ = 0;
  double slept_s_ = 0;
  // The times of one step in seconds. overrun: 1 if the real computation took longer than compute=….
  struct StepTime {
    double begin_s = 0, compute_s = 0, exposed_s = 0, overrun = 0;
  };
  std::vector<StepTime> steps_;
};

}  // namespace starling
