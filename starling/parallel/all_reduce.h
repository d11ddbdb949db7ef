// All-reduce data parallelism (synchronous SGD): every rank computes the gradient of its share of the global batch, the
// mean over all ranks is applied by everyone, so that all replicas stay equal:
//
//   w_{t+1} = w_t - lr · U( 1/p Σ_k g_k(w_t) ),   g_k = mean gradient of rank k's samples, U = the update rule
//
// (Chen et al., "Revisiting Distributed Synchronous SGD", arXiv 1604.00981; buckets reduced during backward as in Li et
// al., "PyTorch Distributed", arXiv 2006.15704.) What is particular here: gradients lie in windows of shared memory, and
// reduction and optimizer are one pass over them (optim/update_rule.h), divided among the ranks of a host.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "starling/base/clock.h"
#include "starling/comm/group.h"
#include "starling/nn/gradient_slot.h"
#include "starling/optim/update_rule.h"
#include "starling/parallel/bucket_exchange.h"
#include "starling/parallel/flat_layout.h"
#include "starling/parallel/flat_memory.h"
#include "starling/parallel/model_parts.h"
#include "starling/parallel/replica.h"
#include "starling/parallel/strategy.h"
#include "starling/parallel/thread_team.h"

namespace starling {

struct AllReduceOptions {
  at::ScalarType master = at::kFloat;   // parameters, optimizer states and their arithmetic: float or double
  at::ScalarType working = at::kFloat;  // forward, backward and gradients: master, or bfloat16
  OptimizerShare share = OptimizerShare::kAuto;
  size_t bucket_bytes = 8u << 20;
  double clip_norm =
      0;  // gradients are scaled to at most this norm; 0 = off. Turns off the overlap of the update.
  int64_t hash_every = 0;  // steps between comparisons of the replicas, 0 = never
  int members = 1;         // threads of this rank that hold a mini-batch each
  bool channels_last = false;
  // A step that breaks off (CommError) leaves the state after the last whole one, for own_state(): parameters and states on two
  // sides on every rank, and buckets that stay in their first order.
  bool transactional = false;
  // 0: every rank has equally many samples of a step. Else their sum over the ranks, of which each may have another part: a
  // gradient counts as its samples do.
  int64_t global_batch = 0;
  uint64_t seed = 0;
  ModelParts parts;  // where a replica is divided over several ranks
  // Tests only: sees this rank's finished gradients of a bucket before anybody reads them.
  std::function<void(int64_t step, size_t bucket, void* data, size_t bytes)> on_bucket;
};

class AllReduce final : public Strategy {
 public:
  // Collective over the group. Parameters are those of rank 0's fresh model on all ranks. group and clock outlive this.
  AllReduce(const ModelFactory& factory, UpdateRule rule, const AllReduceOptions& options, Group& group,
            const Clock& clock);
  ~AllReduce() override;

  void begin_step(const Step& step) override;
  double forward_backward(const Batch& batch) override;
  StepReport update() override;
  void consensus() override;
  StrategyState state() override;
  void load_state(const StrategyState& state) override;
  // state() of this rank, complete on every one, without the others: also after a step that broke off (transactional). Ranks
  // may then differ by one step; who has made it has made it whole.
  StrategyState own_state();

  // The model as it stands after the last update (consensus() for equal buffers); member 0's.
  Replica& replica() { return replicas_[0]; }
  Replica& evaluated() { return replicas_[0]; }
  // parameter_bytes, bytes_a_step (what peers read of this rank, or what it sends), divided.
  std::map<std::string, double> fingerprint() const;
  bool divided() const { return memory_->options().divided; }

 private:
  struct Notice {  // what each rank tells the others of a step
    double loss = 0;
    double stop = 0;
  };

  void place_tensors();
  void copy_into_memory(const std::vector<at::Tensor>& parameters);
  void refresh_working();
  void make_exchange();
  void install_slots();
  void gradient_filled(size_t parameter);
  void bucket_complete(size_t bucket);
  double weight_of(const Batch& batch) const;
  double member_forward_backward(int member, const Batch& batch);
  void apply_bucket(size_t bucket);
  template <typename T, typename G>
  void apply_range(size_t begin, size_t end);
  void apply_clipped();
  template <typename G>
  double squares_of_own_share();
  std::vector<const std::byte*> sources() const;
  void rebuild_in_order_of_arrival();
  void relayout(const std::vector<size_t>& order);
  uint64_t bytes_in_windows() const;
  void post_notice();
  void read_notices(StepReport& report);
  void compare_replicas();

  AllReduceOptions options_;
  UpdateRule rule_;
  Group& group_;
  const Clock& clock_;
  bool one_host_ = true;
  std::vector<Replica> replicas_;  // one a member; all show the same parameters
  std::vector<size_t> sizes_;      // elements, by parameter
  FlatLayout layout_;
  std::unique_ptr<FlatMemory> memory_;
  std::shared_ptr<Window> board_;                            // one Notice a local rank
  std::vector<std::vector<GradientSlot::Installed>> slots_;  // [member][parameter]
  std::vector<size_t> missing_;                              // by bucket
  std::vector<size_t> arrival_;  // parameters in the order in which the first step's gradients came
  std::unique_ptr<ThreadTeam> team_;
  std::unique_ptr<BucketExchange> exchange_;
  Step step_;
  double own_loss_ = 0;
  double update_scale_ = 1;
  int64_t whole_step_ = 0;  // the last one whose update is in place
  double forward_backward_s_ = 0;
  bool rebuilt_ = false;
};

}  // namespace starling
