// FlatReplica: a replica that one rank trains by itself, its parameters, gradients and optimizer states being flat ranges.
// What the exchanges that let replicas differ are built on (local SGD, ADMM, gossip, parallel SGD, parameter server): they
// read and write whole ranges, and never see a layer.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "starling/comm/group.h"
#include "starling/nn/gradient_slot.h"
#include "starling/optim/update_rule.h"
#include "starling/parallel/flat_layout.h"
#include "starling/parallel/flat_memory.h"
#include "starling/parallel/model_parts.h"
#include "starling/parallel/replica.h"
#include "starling/parallel/strategy.h"

namespace starling {

struct FlatReplicaOptions {
  at::ScalarType master = at::kFloat;   // parameters, optimizer states and their arithmetic: float or double
  at::ScalarType working = at::kFloat;  // forward and backward: master, or bfloat16
  double clip_norm = 0;                 // this replica's gradient is scaled to at most this norm; 0 = off
  bool channels_last = false;
  uint64_t seed = 0;
  int rank = 0;      // for messages
  ModelParts parts;  // where the replica is divided over several ranks
};

// Not thread-safe. No method communicates but norm(), and update() where it clips, with the ranks of options.parts; and, where
// the model is such a part, what computes with it.
class FlatReplica {
 public:
  FlatReplica(const ModelFactory& factory, UpdateRule rule, const FlatReplicaOptions& options);
  ~FlatReplica();
  FlatReplica(const FlatReplica&) = delete;

  Replica& replica() { return replica_; }
  const FlatReplicaOptions& options() const { return options_; }
  const UpdateRule& rule() const { return rule_; }
  const FlatLayout& layout() const { return layout_; }
  const std::vector<size_t>& sizes() const { return sizes_; }

  // Flat ranges of layout().total elements of the master type; padding between tensors stays zero. They show this
  // object's own memory: write into them, then call parameters_changed().
  at::Tensor& parameters() { return parameters_; }
  at::Tensor& gradients() { return gradients_; }
  at::Tensor& state(int i) { return states_[static_cast<size_t>(i)]; }
  size_t bytes() const { return parameters_.nbytes(); }
  // Σ of the squares of a flat range over the whole model.
  double squares(const at::Tensor& flat) const;
  // The tensors of the module follow what was written into parameters().
  void parameters_changed();

  // Forward and backward; afterwards gradients() holds the gradient of the batch's mean loss, which is returned.
  // Errors: Error(kNumeric) for a loss that is not finite, naming rank, step and the first bad parameter.
  double forward_backward(const Batch& batch, int64_t step);
  // The mean loss of the batch under the present parameters, the module in evaluation mode: nothing is changed.
  double loss_of(const Batch& batch);
  // The update rule, in place, on gradients() (clipped where the options say so).
  void update(const Step& step);

  // Evaluation of other parameters than one's own: show() puts them in place and keeps one's own; hide() puts those back.
  void show(const at::Tensor& parameters);
  void hide();

  // A tensor for each parameter out of a flat range, under "<prefix><name>", copied.
  void unflatten(const at::Tensor& flat, const std::string& prefix,
                 std::map<std::string, at::Tensor>& out) const;
  // The reverse. Errors: Error(kCheckpoint) naming the tensor that is missing or of another shape.
  void flatten(const std::map<std::string, at::Tensor>& in, const std::string& prefix,
               at::Tensor& flat) const;

 private:
  FlatReplicaOptions options_;
  UpdateRule rule_;
  std::unique_ptr<Group> alone_;
  Replica replica_;
  std::vector<size_t> sizes_;
  FlatLayout layout_;
  std::unique_ptr<FlatMemory> memory_;
  std::vector<GradientSlot::Installed> slots_;
  at::Tensor parameters_, gradients_, working_gradients_, aside_;
  std::vector<at::Tensor> states_;
};

// Copies of the same flat range of every rank, on rank 0; empty elsewhere. Collective.
std::vector<at::Tensor> gather_flat(Group& group, const at::Tensor& flat);

// Floating-point buffers (running statistics) become the mean over the ranks, others those of rank 0. Collective.
void average_buffers(Group& group, Replica& replica);

// The mean of `value` over the ranks and whether any rank asks to stop. Collective.
struct Agreement {
  double loss = 0;
  bool stop = false;
};
Agreement agree(Group& group, double loss, bool stop_requested);

}  // namespace starling
