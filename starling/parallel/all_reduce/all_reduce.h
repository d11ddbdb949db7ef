// All-reduce data parallelism (synchronous SGD). Each rank computes the gradient of its share of the global
// batch, and every rank applies the mean over all ranks. All replicas therefore stay equal:
//
//   w_{t+1} = w_t - lr · U( 1/p Σ_k g_k(w_t) )
//
// g_k is the mean gradient of rank k's samples, and U is the update rule. (Chen et al., "Revisiting
// Distributed Synchronous SGD", arXiv 1604.00981. Buckets are reduced during backward as in Li et al.,
// "PyTorch Distributed", arXiv 2006.15704.)
//
// If a host has several ranks, their gradients lie in windows of shared memory. On one host, reduction and
// optimizer are one pass over these windows (optim/update_rule.h). On several hosts, an all-reduce of each
// bucket comes before this pass. If the parameters are sharded, the ranks of a host share the pass.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "starling/base/clock.h"
#include "starling/comm/group.h"
#include "starling/nn/layers/gradient_slot.h"
#include "starling/optim/layer_rule.h"
#include "starling/optim/update_rule.h"
#include "starling/parallel/all_reduce/gradient_reducer.h"
#include "starling/parallel/all_reduce/weight_sum.h"
#include "starling/parallel/replica/flat_layout.h"
#include "starling/parallel/replica/flat_memory.h"
#include "starling/parallel/replica/flat_replica.h"
#include "starling/parallel/replica/model_parts.h"
#include "starling/parallel/replica/replica.h"
#include "starling/parallel/replica/thread_team.h"
#include "starling/parallel/strategy.h"
#include "starling/spec/run_spec.h"

namespace starling {

// Settings of AllReduce.
struct AllReduceOptions {
  at::ScalarType master = at::kFloat;   // parameters, optimizer states and their arithmetic: float or double
  at::ScalarType working = at::kFloat;  // forward, backward and gradients: master, or bfloat16
  OptimizerShare share = OptimizerShare::kAuto;
  size_t bucket_bytes = 8u << 20;
  // The largest norm of the gradient; a larger gradient is scaled to this norm. 0: no limit. A limit turns
  // off the overlap of the update with backward.
  double clip_norm = 0;
  int64_t hash_every = 0;  // steps between comparisons of the replicas; 0: never
  int threads = 1;         // threads of this rank, each of which computes a part of its mini-batch
  int64_t accumulate = 1;  // parts of a thread's mini-batch, computed one after another (batch_parts.h)
  bool channels_last = false;
  // Whether a step that a CommError interrupts leaves the state after the last complete step for own_state().
  // Parameters and states then have two sides on every rank, and buckets keep their initial order.
  bool transactional = false;
  // 0 if every rank has equally many samples in a step. Otherwise the number of samples of all ranks, whose
  // shares may differ; each gradient is then weighted by its number of samples. A weighted loss does not need
  // it, because its gradients are weighted by their weights in any case.
  int64_t global_batch = 0;
  uint64_t seed = 0;
  ModelParts parts;  // set if a replica is sharded over several ranks
  // Tests only: receives this rank's finished gradients of a bucket before any rank reads them.
  std::function<void(int64_t step, size_t bucket, void* data, size_t bytes)> on_bucket;
};

// Returns the options that the configuration gives. `replica` holds the options that all exchanges share.
AllReduceOptions all_reduce_options(const RunSpec& spec, const FlatReplicaOptions& replica);

// The exchange "all-reduce" without a codec. Not thread-safe.
class AllReduce final : public Strategy, public Recoverable {
 public:
  // Collective over the group. On all ranks, the parameters are those of rank 0's fresh model. The rule has
  // no rates of tensors (lars, lamb). The group and the clock must outlive this object.
  AllReduce(const ModelFactory& factory, UpdateRule rule, const AllReduceOptions& options, Group& group,
            const Clock& clock);
  ~AllReduce() override;

  void begin_step(const Step& step) override;
  double forward_backward(const Batch& batch) override;
  StepReport update() override;
  void consensus() override;
  void show_average() override;
  StrategyState state() override;
  void load_state(const StrategyState& state) override;
  // Returns the complete state of this rank without communication. With options.transactional, it may also be
  // called after a step that a CommError interrupted. Ranks may then differ by one step. No rank holds a
  // partial update.
  StrategyState own_state() override;

  // The model after the last update, as the first thread of this rank has it. Buffers are equal on all ranks
  // only after consensus().
  Replica& replica() { return replicas_[0]; }
  Replica& evaluated() override { return replicas_[0]; }
  // Returns parameter_bytes, window_bytes_a_step and sharded. window_bytes_a_step is what this rank
  // publishes to peers on its host in a step (TrafficCount). sharded is 1 if each rank of the host updates a
  // share of one copy.
  StrategyStats strategy_stats() override;
  Recoverable* recoverable() override { return this; }
  // Whether the ranks of this host share one copy of the parameters.
  bool sharded() const { return memory_->options().sharded; }

 private:
  // What each rank tells all other ranks of a step.
  struct Notice {
    double loss = 0;
    double stop = 0;
    // 0 if the mean gradient is not finite in the rank's share of the update. Valid after wait_for_all().
    double finite = 1;
  };

  void place_tensors();
  at::Tensor place_of(size_t parameter, const at::Tensor& like) const;
  void hide_average();
  void copy_into_memory(const std::vector<at::Tensor>& parameters);
  void refresh_working();
  void make_exchange();
  void install_slots();
  void gradient_filled(size_t parameter);
  void bucket_complete(size_t bucket);
  double scale_of(const BatchLoss& loss);
  double thread_forward_backward(int thread, const Batch& batch);
  void apply_bucket(size_t bucket);
  template <typename T, typename G>
  bool apply_range(size_t bucket, size_t begin, size_t end);
  std::vector<LayerPart> layer_parts(size_t bucket, size_t begin, size_t end) const;
  void apply_clipped();
  template <typename G>
  double squares_of_own_share();
  std::vector<const std::byte*> sources() const;
  void rebuild_in_order_of_arrival();
  void relayout(const std::vector<size_t>& order);
  int slowest_rank(const GradientReducer::Finish& finish) const;
  uint64_t bytes_in_windows() const;
  void post_notice();
  bool all_finite() const;
  [[noreturn]] void refuse_gradients() const;
  void read_notices(StepReport& report);
  void compare_replicas();

  AllReduceOptions options_;
  UpdateRule rule_;
  std::optional<LayerRule> layers_;  // set if vectors have no weight decay
  Group& group_;
  const Clock& clock_;
  bool one_host_ = true;
  std::vector<Replica> replicas_;  // one per thread; all share the same parameters
  std::vector<size_t> sizes_;      // in elements, by parameter
  FlatLayout layout_;
  std::unique_ptr<FlatMemory> memory_;
  std::shared_ptr<Window> board_;                            // one Notice per local rank
  std::vector<std::vector<GradientSlot::Installed>> slots_;  // [thread][parameter]
  std::vector<size_t> missing_;  // by bucket: parameters without a gradient so far
  std::vector<size_t> arrival_;  // parameters in the order of their gradients in the first step
  std::unique_ptr<ThreadTeam> team_;
  std::unique_ptr<GradientReducer> exchange_;
  Step step_;
  double own_loss_ = 0;
  std::atomic<bool> finite_ = true;  // the mean gradient, in what this rank has updated in this step
  double update_scale_ = 1;
  WeightSum weights_;       // of a weighted loss
  int64_t whole_step_ = 0;  // the last step whose update is complete
  double forward_backward_s_ = 0;
  double weighing_s_ = 0;  // this rank's first thread waited for the weights of a weighted loss
  bool rebuilt_ = false;
  bool shows_average_ = false;
};

}  // namespace starling
