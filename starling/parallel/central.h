// Central storage: the shared memory of one host holds the only copy of the parameters and of the optimizer's
// states.
//
//   w ← w − lr · U( 1/p Σ_k g_k(w) )
//
// In mode `master`, rank 0 reduces the gradients of all ranks and updates the parameters while all other
// ranks wait. (torch's DataParallel and TensorFlow's CentralStorageStrategy work so.) In mode `sharded`, each
// rank reduces and updates 1/p of the parameters.
//
// With an own optimizer (parallel/replica/own_optimizer.h), that of rank 0 makes the whole update in mode
// `master`. In mode `sharded`, that of each rank updates 1/p of the parameters, and must update each element
// by itself. The states of own optimizers are not in shared memory.
//
// The update works in place, between two barriers. A rank that is killed during an update therefore leaves a
// damaged copy. All-reduce, which has double-buffered memory (parallel/replica/flat_memory.h), does not. In
// return, each host holds the parameters only once.
//
// In each step, a rank publishes its gradients to the ranks that reduce them. It publishes the parameters
// that it updates to all other ranks (TrafficCount in comm/group.h). In mode `sharded` these are
// 2 (p − 1)/p |W| bytes per rank. In mode `master` they are (p − 1) |W| on rank 0 and |W| on every other
// rank.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "starling/base/clock.h"
#include "starling/nn/layers/gradient_slot.h"
#include "starling/optim/update_rule.h"
#include "starling/parallel/replica/flat_layout.h"
#include "starling/parallel/replica/own_gradients.h"
#include "starling/parallel/replica/replica_strategy.h"

namespace starling {

// The exchange "central". Not thread-safe.
class Central final : public Strategy, public OwnLoop {
 public:
  // Collective. `sharded` selects the mode. The group and the clock must outlive this object. Errors:
  // ConfigError if the ranks of the group are on several hosts, if options.working differs from
  // options.master, or if an own optimizer cannot be sharded.
  Central(const ModelFactory& factory, UpdateRule rule, const FlatReplicaOptions& options, bool sharded,
          Group& group, const Clock& clock);

  void begin_step(const Step& step) override { step_ = step; }
  double forward_backward(const Batch& batch) override;
  StepReport update() override;
  void consensus() override;
  StrategyState state() override;
  void load_state(const StrategyState& state) override;
  void take_gradients(const OwnStep& step) override;
  void synchronize() override;

  // Returns parameter_bytes, resident_parameter_bytes (the memory of the host that holds parameters) and
  // sharded (0 or 1).
  StrategyStats strategy_stats() override;
  Replica& evaluated() override { return replica_; }
  OwnLoop* own_loop() override { return options_.own_gradients ? this : nullptr; }

 private:
  void place_parameters();
  void make_optimizer();
  at::Tensor view(const at::Tensor& flat, size_t parameter) const;
  uint64_t bytes_in_windows() const;
  template <typename T>
  void apply();
  [[noreturn]] void refuse() const;
  // The elements that this rank reduces and updates. Empty on ranks that wait for rank 0.
  std::pair<int64_t, int64_t> own_elements() const;
  at::Tensor gradients_of(int rank) const;
  void agree_on_step();
  void reduce(int64_t begin, int64_t count);
  void apply_own();

  FlatReplicaOptions options_;
  UpdateRule rule_;
  bool sharded_;
  Group& group_;
  const Clock& clock_;
  Replica replica_;
  FlatLayout layout_;
  std::shared_ptr<Window> storage_, gradients_;
  at::Tensor parameters_;           // flat, in shared memory
  std::vector<at::Tensor> states_;  // flat, in shared memory
  std::vector<GradientSlot::Installed> slots_;
  // With an own optimizer:
  std::shared_ptr<OwnOptimizer> optimizer_;
  std::optional<OwnedRange> range_;      // mode `sharded`: what the optimizer updates
  std::vector<at::Tensor> gradient_of_;  // by parameter: this rank's gradient in the window
  std::vector<double> used_;             // by parameter: 0 if it had no gradient
  std::optional<Agreement> agreed_;      // of the step, once the gradients of all ranks are in place
  bool exchanged_ = false;               // every rank has the whole mean of the step in its gradients
  Step step_;
  double own_loss_ = 0, forward_backward_s_ = 0;
  double weighing_s_ = 0;  // the ranks added the weights of a weighted loss
};

}  // namespace starling
