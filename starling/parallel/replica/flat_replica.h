// FlatReplica is a replica whose parameters, gradients and optimizer states are flat ranges. One rank trains
// it.
//
// The exchanges whose replicas may differ (local SGD, ADMM, gossip, parallel SGD, parameter server) use it.
// Hybrid parallelism, compressed SGD and the exchanges for own optimizers use it, too. They read and write
// whole ranges and do not depend on layers.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "starling/base/clock.h"
#include "starling/comm/group.h"
#include "starling/nn/layers/gradient_slot.h"
#include "starling/optim/layer_rule.h"
#include "starling/optim/update_rule.h"
#include "starling/parallel/replica/flat_layout.h"
#include "starling/parallel/replica/flat_memory.h"
#include "starling/parallel/replica/model_parts.h"
#include "starling/parallel/replica/own_optimizer.h"
#include "starling/parallel/replica/replica.h"
#include "starling/parallel/strategy.h"

namespace starling {

// How several threads train the parameters of a rank without locks (hogwild_team.h).
struct HogwildOptions {
  int threads = 0;      // 0: one thread trains, by the update rule
  int64_t updates = 1;  // of each thread in a step
  bool sparse = false;  // whether an update leaves out the elements whose gradient is 0
};

// Settings of FlatReplica.
struct FlatReplicaOptions {
  at::ScalarType master = at::kFloat;   // parameters, optimizer states and their arithmetic: float or double
  at::ScalarType working = at::kFloat;  // forward and backward: master, or bfloat16
  double clip_norm = 0;                 // the largest norm of this replica's gradient; 0: no limit
  double clip_value = 0;                // the largest absolute value of an element of it; 0: no limit
  bool channels_last = false;
  uint64_t seed = 0;
  int rank = 0;                      // named in error messages
  ModelParts parts;                  // set if the replica is sharded over several ranks
  OwnOptimizerMaker optimizer = {};  // makes the optimizer of the user's program; empty: the update rule
  // forward_backward() computes its batch in so many parts (batch_parts.h).
  int64_t accumulate = 1;
  // The number of elements of the flat ranges is a multiple of this number.
  int64_t multiple_of = 1;
  // Whether the user's own loop computes the gradients. take_own_gradients() then reads them.
  bool own_gradients = false;
  // Whether the memory of the gradients exists only from forward_backward() or take_own_gradients() to
  // release_gradients().
  bool releases_gradients = false;
  // The ranks whose gradients the exchange averages in every step. A weighted loss is then divided by the
  // weight of all of them. Null: by the weight of this rank's samples.
  Group* mean_over = nullptr;
  // 0 if these ranks have equally many samples in a step. Otherwise the number of samples of all of them. The
  // loss of each rank is then weighted by its number of samples.
  int64_t global_batch = 0;
  // What update() gets in place of this rank's gradients, for messages. An exchange checks the gradients with
  // check_gradients() before they become that.
  std::string updates_with = "the gradient of";
  const Clock* clock = nullptr;  // measures weighing_s(); null: weighing_s() is 0
  HogwildOptions hogwild = {};   // read by ReplicaStrategy
};

// A model with its flat ranges and its update rule. Not thread-safe. squares() communicates with the ranks of
// options.parts. So does update() if it clips the norm, or if the rate of a tensor depends on its norm.
// forward_backward() of a weighted loss communicates with the ranks of options.mean_over. If the model is a
// part of a pipeline or of a tensor group, its forward and backward communicate, too.
class FlatReplica {
 public:
  // Makes the model with the parameters that options.seed gives.
  FlatReplica(const ModelFactory& factory, UpdateRule rule, const FlatReplicaOptions& options);
  ~FlatReplica();
  FlatReplica(const FlatReplica&) = delete;

  // The model with its named parameters and buffers.
  Replica& replica() { return replica_; }
  // The settings.
  const FlatReplicaOptions& options() const { return options_; }
  // The update rule.
  const UpdateRule& rule() const { return rule_; }
  // The layout of the flat ranges.
  const FlatLayout& layout() const { return layout_; }
  // The sizes of the parameters in elements.
  const std::vector<size_t>& sizes() const { return sizes_; }

  // The parameters: a flat range of layout().total elements of the master type. Padding between tensors must
  // stay zero. The tensor shows this object's memory; after a write, call parameters_changed().
  at::Tensor& parameters() { return parameters_; }
  // The gradients: a flat range of the master type. Undefined while options.releases_gradients has freed
  // them.
  at::Tensor& gradients() { return gradients_; }
  // Optimizer state `i`: a flat range of the master type.
  at::Tensor& state(int i) { return states_[static_cast<size_t>(i)]; }
  // The size of a flat range of the master type.
  size_t bytes() const { return parameters_.nbytes(); }
  // Returns the sum of the squares of a flat range over the whole model. Collective over options.parts.
  double squares(const at::Tensor& flat) const;
  // Returns the sum of the squares of `flat`, the elements of the flat range from `begin` on. Parameters that
  // another part of the model counts are left out.
  double own_squares(const at::Tensor& flat, int64_t begin) const;
  // Updates the module's tensors after a write into parameters().
  void parameters_changed();

  // Runs forward and backward. Afterwards gradients() holds the gradient of the batch's mean loss. Returns
  // that loss. With options.mean_over, both are multiplied by share_factor(). For a weighted loss the call is
  // then collective over those ranks. Errors: Error(kNumeric) for a loss that is not finite, naming the rank,
  // the step and the first parameter that is not finite.
  double forward_backward(const Batch& batch, int64_t step);
  // Returns the mean loss of the batch for the present parameters. The module is in evaluation mode, so
  // nothing changes.
  double loss_of(const Batch& batch);
  // Returns the weight of the last batch's loss: its number of samples, or that of a weighted loss.
  double loss_weight() const { return loss_weight_; }
  // Returns the seconds of the last forward_backward() in which the ranks of options.mean_over added the
  // weights of a weighted loss.
  double weighing_s() const { return weighing_s_; }
  // Updates the parameters in place from gradients(), by the update rule or by the own optimizer. Clips the
  // gradients first if options.clip_value or options.clip_norm is set. Errors: Error(kNumeric) for a gradient
  // that is not finite, naming the rank, the step and the first parameter whose gradient is not finite. The
  // parameters are then useless. Gradients of a user's own loop are not checked.
  void update(const Step& step);
  // Takes the gradients (.grad) that the user's own loop has computed, times `weight`. Afterwards the .grad
  // of each parameter shows its part of gradients(), zeros for a parameter without a gradient. Only with
  // options.own_gradients and options.optimizer. Errors: ConfigError that names a parameter whose gradient is
  // sparse.
  void take_own_gradients(double weight);
  // With options.releases_gradients: frees the memory of the gradients. Gradients (.grad) that show it become
  // undefined.
  void release_gradients();
  // Of take_own_gradients(), by parameter: 1 if the parameter had a gradient, otherwise 0. update() gives the
  // optimizer no gradient for a parameter whose entry is 0.
  std::vector<double>& used() { return used_; }
  // With an own optimizer, by parameter: what the optimizer updates, which is the parameter or its master
  // copy.
  const std::vector<NamedTensor>& optimized() const { return optimized_; }
  // The optimizer of the user's program. Null if the replica has an update rule.
  OwnOptimizer* optimizer() { return optimizer_.get(); }
  // Checks gradients() without an update. Errors: as update().
  void check_gradients(int64_t step) const;
  // Clips the elements of gradients() by options.clip_value. Returns the factor that clips their norm by
  // options.clip_norm. Collective over options.parts.
  double clipping_scale();

  // Puts other parameters in place for evaluation and keeps this replica's own.
  void show(const at::Tensor& parameters);
  // Restores this replica's own parameters after show().
  void hide();

  // Copies each parameter's tensor out of a flat range into `out`, under "<prefix><name>".
  void unflatten(const at::Tensor& flat, const std::string& prefix,
                 std::map<std::string, at::Tensor>& out) const;
  // The reverse of unflatten(). Errors: Error(kCheckpoint) naming a tensor that is missing or of another
  // shape.
  void flatten(const std::map<std::string, at::Tensor>& in, const std::string& prefix,
               at::Tensor& flat) const;

 private:
  void check(int64_t step, const std::string& what) const;
  [[noreturn]] void refuse_gradients(int64_t step, const std::string& what) const;
  void make_optimizer();
  void hold_gradients();
  void step_optimizer(const Step& step);
  template <typename T>
  bool apply_rule(double scale, const Step& step);

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
  std::optional<LayerRule> layers_;  // set if the update of an element depends on its tensor
  std::vector<LayerPart> layer_parts_;
  std::shared_ptr<OwnOptimizer> optimizer_;
  // With an own optimizer, by parameter: what the optimizer updates (the parameter, or its master copy), and
  // the part of gradients().
  std::vector<NamedTensor> optimized_;
  std::vector<at::Tensor> gradient_of_;
  std::vector<double> used_;
  double loss_weight_ = 0;
  double weighing_s_ = 0;
};

// Returns copies of every rank's flat range on rank 0, and an empty list on all other ranks. Collective.
std::vector<at::Tensor> gather_flat(Group& group, const at::Tensor& flat);

// Sets floating-point buffers (running statistics) to their mean over the ranks, and all other buffers to
// those of rank 0. Collective.
void average_buffers(Group& group, Replica& replica);

// What the ranks have in common after a step.
struct Agreement {
  double loss = 0;    // mean over the ranks
  bool stop = false;  // whether any rank asks to stop
};
// Returns the mean of `loss` over the ranks and whether any rank asks to stop. Collective.
Agreement agree(Group& group, double loss, bool stop_requested);

}  // namespace starling
