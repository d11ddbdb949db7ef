// Central storage: one copy of the parameters and the optimizer's states in the shared memory of the host; ranks hold nothing
// but their gradients.
//
//   w ← w − lr · U( 1/p Σ_k g_k(w) )
//
// `master`: rank 0 reduces the gradients of all ranks and updates alone while the others wait (torch's DataParallel,
// TensorFlow's CentralStorageStrategy). `divided`: every rank does its 1/p of both. Updated in place between two barriers:
// unlike all-reduce's double-buffered memory (flat_memory.h) a rank that is killed in the middle tears the copy, and
// parameters take their own size once a host.
// What peers read of a rank in a step: its gradients, |W| (master) or |W| (p − 1)/p (divided); and the parameters, |W| once a
// rank that did not write them.
#pragma once

#include <memory>
#include <vector>

#include "starling/base/clock.h"
#include "starling/nn/gradient_slot.h"
#include "starling/optim/update_rule.h"
#include "starling/parallel/flat_layout.h"
#include "starling/parallel/replica_strategy.h"

namespace starling {

class Central final : public Strategy {
 public:
  // Collective. All ranks of the group are on one host, else ConfigError. options.working is options.master.
  Central(const ModelFactory& factory, UpdateRule rule, const FlatReplicaOptions& options, bool divided,
          Group& group, const Clock& clock);

  void begin_step(const Step& step) override { step_ = step; }
  double forward_backward(const Batch& batch) override;
  StepReport update() override;
  void consensus() override;
  StrategyState state() override;
  void load_state(const StrategyState& state) override;

  // resident_parameter_bytes (a host), parameter_bytes, divided.
  Fingerprint fingerprint() const;
  Replica& evaluated() { return replica_; }

 private:
  at::Tensor view(const at::Tensor& flat, size_t parameter) const;
  template <typename T>
  void apply();

  FlatReplicaOptions options_;
  UpdateRule rule_;
  bool divided_;
  Group& group_;
  const Clock& clock_;
  Replica replica_;
  FlatLayout layout_;
  std::shared_ptr<Window> storage_, gradients_;
  at::Tensor parameters_;           // flat, shared
  std::vector<at::Tensor> states_;  // flat, shared
  std::vector<GradientSlot::Installed> slots_;
  Step step_;
  double own_loss_ = 0, forward_backward_s_ = 0;
};

}  // namespace starling
