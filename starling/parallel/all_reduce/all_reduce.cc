#include "starling/parallel/all_reduce/all_reduce.h"

#include <fmt/format.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>
#include <numeric>

#include "starling/base/check.h"
#include "starling/base/error.h"
#include "starling/c10d/data_type.h"
#include "starling/parallel/replica/batch_parts.h"
#include "starling/parallel/replica/flat_replica.h"
#include "starling/parallel/replica/replica_hash.h"
#include "starling/spec/optimizer_refusal.h"

namespace starling {
namespace {

bool choose_sharded(const AllReduceOptions& options, size_t local_ranks) {
  // One copy for all ranks of a host is faster for two ranks and more, because each rank writes 1/p of the
  // parameters.
  return options.share == OptimizerShare::kSharded ||
         (options.share == OptimizerShare::kAuto && local_ranks > 1);
}

}  // namespace

AllReduce::AllReduce(const ModelFactory& factory, UpdateRule rule, const AllReduceOptions& options,
                     Group& group, const Clock& clock)
    : options_(options),
      rule_(std::move(rule)),
      group_(group),
      clock_(clock),
      weights_(group, options.threads) {
  if (updates_by_tensor(rule_.spec())) {
    layers_.emplace(rule_.spec());
    STARLING_CHECK(!layers_->needs_squares(), "{} needs the whole gradients of tensors", rule_.spec().name);
  }
  const size_t locals = group.local_ranks().size();
  one_host_ = static_cast<int>(locals) == group.size();
  for (int m = 0; m < options.threads; ++m)
    replicas_.push_back(make_replica(factory, options.working, options.seed));
  for (Replica& replica : replicas_) {
    if (options.channels_last) to_channels_last(replica);
  }
  for (const NamedTensor& p : replicas_[0].parameters) sizes_.push_back(p.tensor.numel());
  // Backward computes gradients roughly from the last parameter to the first.
  std::vector<size_t> order(sizes_.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = order.size() - 1 - i;
  const size_t bucket_size = std::max<size_t>(1, options.bucket_bytes / at::elementSize(options.working));
  layout_ = make_flat_layout(sizes_, order, bucket_size);

  FlatMemoryOptions memory;
  memory.total = layout_.total;
  memory.states = rule_.state_count();
  memory.master = options.master;
  memory.working = options.working;
  memory.sharded = locals > 1 && choose_sharded(options, locals);
  memory.threads = options.threads;
  memory.transactional = options.transactional;
  memory_ = std::make_unique<FlatMemory>(group, memory);
  if (locals > 1) board_ = group.allocate_window(sizeof(Notice));
  if (options.threads > 1) team_ = std::make_unique<ThreadTeam>(options.threads);

  std::vector<at::Tensor> initial;
  for (const NamedTensor& p : replicas_[0].parameters)
    initial.push_back(p.tensor.detach().to(options.master).clone());
  copy_into_memory(initial);
  if (group.size() > 1 && !(one_host_ && memory.sharded)) {
    broadcast(group, memory_->parameters(false), layout_.total, data_type_of(options.master), 0);
    refresh_working();
  }
  place_tensors();
  install_slots();
  make_exchange();
  consensus();
  // The rebuild moves tensors and is not a transaction.
  rebuilt_ = options.transactional;
}

AllReduce::~AllReduce() = default;

// Copies all parameters (by index, master type) into flat memory. One rank of a host writes shared memory.
void AllReduce::copy_into_memory(const std::vector<at::Tensor>& parameters) {
  at::NoGradGuard no_grad;
  if (!sharded() || group_.local_rank() == 0) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      memory_->master_view(layout_.offset[i], replicas_[0].parameters[i].tensor).copy_(parameters[i]);
    }
    refresh_working();
  }
  // Every rank must enter this barrier, also a rank that is alone on its host and therefore has nothing
  // sharded.
  if (sharded() || !one_host_) barrier(group_);
}

void AllReduce::refresh_working() {
  if (options_.working == options_.master) return;
  const at::Tensor flat = at::empty({static_cast<int64_t>(layout_.total)});
  memory_->working_view(0, flat).copy_(memory_->master_view(0, flat));
}

// Returns the view of flat memory that a module's parameter `like` shows.
at::Tensor AllReduce::place_of(size_t parameter, const at::Tensor& like) const {
  const size_t offset = layout_.offset[parameter];
  const bool in_master = like.scalar_type() == options_.master;  // bf16 runs keep batch norm in fp32
  return in_master ? memory_->master_view(offset, like) : memory_->working_view(offset, like);
}

// Makes the module's parameters views of flat memory, and binds the gradient slots if they are installed.
void AllReduce::place_tensors() {
  at::NoGradGuard no_grad;
  for (size_t m = 0; m < replicas_.size(); ++m) {
    for (size_t i = 0; i < sizes_.size(); ++i) {
      at::Tensor& p = replicas_[m].parameters[i].tensor;
      p.set_data(place_of(i, p));
      if (!slots_.empty())
        slots_[m][i].slot->bind(memory_->gradient_view(static_cast<int>(m), layout_.offset[i], p));
    }
  }
}

void AllReduce::install_slots() {
  slots_.resize(replicas_.size());
  for (size_t m = 0; m < replicas_.size(); ++m) {
    for (size_t i = 0; i < sizes_.size(); ++i) {
      // If there are several threads, forward_backward() completes the buckets after all threads have
      // finished.
      std::function<void()> filled = [] {};
      if (replicas_.size() == 1) filled = [this, i] { gradient_filled(i); };
      slots_[m].push_back(GradientSlot::install(replicas_[m].parameters[i].tensor, std::move(filled)));
    }
  }
  place_tensors();
}

void AllReduce::make_exchange() {
  missing_.assign(layout_.buckets.size(), 0);
  const bool clipped = options_.clip_norm > 0;
  const BucketWork work = [this, clipped](size_t bucket) {
    if (!clipped) apply_bucket(bucket);
  };
  if (one_host_) {
    exchange_ = make_host_reducer(group_, clock_, layout_.buckets.size(), work);
    return;
  }
  const BucketWork reduce = [this](size_t bucket) {
    const Bucket& b = layout_.buckets[bucket];
    const size_t size = at::elementSize(options_.working);
    const auto gradients_of = [&](int thread) {
      auto* own = static_cast<std::byte*>(memory_->gradients(group_.local_rank(), thread));
      return at::from_blob(own + b.begin * size, {static_cast<int64_t>(b.size())}, options_.working);
    };
    at::Tensor sum = gradients_of(0);
    for (int m = 1; m < options_.threads; ++m) sum.add_(gradients_of(m));
    all_reduce(group_, sum.data_ptr(), b.size(), data_type_of(options_.working), ReduceOp::kSum);
  };
  exchange_ = make_network_reducer(group_, clock_, layout_.buckets.size(), reduce, work);
}

void AllReduce::begin_step(const Step& step) {
  hide_average();
  step_ = step;
  finite_ = true;
  update_scale_ = 1.0 / (static_cast<double>(group_.size()) * options_.threads);
  for (auto& of_thread : slots_) {
    for (auto& s : of_thread) s.slot->begin();
  }
  for (size_t b = 0; b < missing_.size(); ++b) missing_[b] = layout_.buckets[b].parameters.size();
  arrival_.clear();
  exchange_->begin(step.index);
}

void AllReduce::gradient_filled(size_t parameter) {
  if (!rebuilt_) arrival_.push_back(parameter);
  const size_t bucket = layout_.bucket_of[parameter];
  if (--missing_[bucket] == 0) bucket_complete(bucket);
}

void AllReduce::bucket_complete(size_t bucket) {
  if (options_.on_bucket) {
    const Bucket& b = layout_.buckets[bucket];
    const size_t size = at::elementSize(options_.working);
    auto* own = static_cast<std::byte*>(memory_->gradients(group_.local_rank(), 0));
    options_.on_bucket(step_.index, bucket, own + b.begin * size, b.size() * size);
  }
  exchange_->completed(bucket);
}

double AllReduce::thread_forward_backward(int thread, const Batch& batch) {
  const auto& slots = slots_[thread];
  const std::vector<Batch> parts = cut_batch(batch, options_.accumulate);
  PartSteps steps =
      steps_by_slots(replicas_[thread].model, options_.working, options_.channels_last, slots, parts.size());
  steps.factor = [this, thread](const BatchLoss& whole) {
    const Nanoseconds begin = clock_.now();
    const double factor = scale_of(whole);
    if (thread == 0) weighing_s_ = to_seconds(clock_.now() - begin);
    return factor;
  };
  steps.check = [this, thread](double loss) {
    if (!std::isfinite(loss)) refuse_loss(replicas_[0], group_.job_rank(group_.rank()), step_.index, loss);
    if (thread != 0) return;
    own_loss_ = loss;
    post_notice();
  };
  const double value = batch_by_parts(parts, steps);
  for (const auto& s : slots) s.slot->fill_unused();
  return value;
}

// Returns what a thread's loss is multiplied by, so that the mean over all threads of all ranks is the mean
// over the samples, or over the weights of a weighted loss. Collective for a weighted loss.
double AllReduce::scale_of(const BatchLoss& loss) {
  const double parts = static_cast<double>(group_.size()) * options_.threads;
  if (loss.weighted) {
    const double all = weights_.total(loss.weight);
    return all > 0 ? parts / all : parts;
  }
  if (options_.global_batch == 0) return 1;
  return loss.weight * parts / static_cast<double>(options_.global_batch);
}

double AllReduce::forward_backward(const Batch& batch) {
  const Nanoseconds start = clock_.now();
  weights_.begin();
  if (!team_) {
    thread_forward_backward(0, batch);
  } else {
    std::vector<double> losses(team_->size());
    team_->run([&](int m) {
      const int64_t begin = batch.size() * m / team_->size();
      const int64_t end = batch.size() * (m + 1) / team_->size();
      try {
        losses[m] = thread_forward_backward(m, batch.part(begin, end - begin));
      } catch (...) {  // other threads may wait for the weight of this one
        weights_.fail(std::current_exception());
        throw;
      }
    });
    own_loss_ = std::accumulate(losses.begin(), losses.end(), 0.0) / team_->size();
    post_notice();
    for (size_t b = 0; b < layout_.buckets.size(); ++b) bucket_complete(b);
  }
  forward_backward_s_ = to_seconds(clock_.now() - start);
  return own_loss_;
}

// Peers read this notice after they have seen this rank's first bucket, and before they report that their
// step is done.
void AllReduce::post_notice() {
  if (board_)
    *reinterpret_cast<Notice*>(board_->region(group_.local_rank())) = {own_loss_,
                                                                       step_.stop_requested ? 1.0 : 0.0, 1.0};
}

void AllReduce::read_notices(StepReport& report) {
  Notice sum{own_loss_, step_.stop_requested ? 1.0 : 0.0, 1.0};
  if (!one_host_) {
    all_reduce(group_, &sum, 2, DataType::kFp64, ReduceOp::kSum);
  } else if (board_) {
    sum = {};
    for (int r = 0; r < group_.size(); ++r) {
      const auto* notice = reinterpret_cast<const Notice*>(board_->region(r));
      sum.loss += notice->loss;
      sum.stop += notice->stop;
    }
  }
  report.loss = sum.loss / group_.size();
  report.stop = sum.stop > 0;
}

StepReport AllReduce::update() {
  const Nanoseconds start = clock_.now();
  const GradientReducer::Finish finish = exchange_->finish();
  StepReport report;
  const Nanoseconds reading = clock_.now();
  read_notices(report);
  // Between hosts, the notices are an exchange.
  const double notices_s = one_host_ ? 0 : to_seconds(clock_.now() - reading);
  if (options_.clip_norm > 0) apply_clipped();
  if (board_ && !finite_) reinterpret_cast<Notice*>(board_->region(group_.local_rank()))->finite = 0;
  report.expose(ExchangePhase::kGradients, finish.waited_s);
  report.expose(ExchangePhase::kAgreement, weighing_s_ + notices_s);
  report.expose(ExchangePhase::kParameters, exchange_->wait_for_all());
  if (!all_finite()) refuse_gradients();
  memory_->commit(step_.index);
  whole_step_ = step_.index;
  report.slowest_rank = slowest_rank(finish);
  report.bytes_sent = bytes_in_windows();
  report.compute_s = forward_backward_s_ + to_seconds(clock_.now() - start) - report.exposed_comm_s;
  if (options_.hash_every > 0 && step_.index % options_.hash_every == 0) compare_replicas();
  if (!rebuilt_) rebuild_in_order_of_arrival();
  return report;
}

// A rank of one host that waited for no other rank came last. Between hosts, the reducer does not know which
// rank came last.
int AllReduce::slowest_rank(const GradientReducer::Finish& finish) const {
  if (group_.size() == 1) return -1;
  if (finish.slowest_local >= 0) return group_.job_rank(group_.local_ranks()[finish.slowest_local]);
  return one_host_ ? group_.job_rank(group_.rank()) : -1;
}

// Returns the bytes that this rank publishes to peers on this host in a step (TrafficCount). W is the size of
// the flat range, and p is the number of ranks on the host. A gradient is published to the rank that reduces
// it: W (p - 1)/p if sharded. If replicated, it is published to all peers: W (p - 1). If sharded, the
// parameters that this rank updates are published to all peers: W/p for each. If there are several hosts, the
// group counts the gradients, which enter sockets.
uint64_t AllReduce::bytes_in_windows() const {
  const uint64_t p = group_.local_ranks().size();
  if (p == 1) return 0;
  const uint64_t element = at::elementSize(options_.working);
  const auto threads = static_cast<uint64_t>(options_.threads);
  const uint64_t notice = one_host_ ? sizeof(Notice) * (p - 1) : 0;
  if (!sharded()) return one_host_ ? notice + layout_.total * element * threads * (p - 1) : 0;
  uint64_t own = 0;  // elements that this rank updates
  for (const Bucket& b : layout_.buckets) {
    for (uint64_t m = 0; m < threads; ++m) {
      const auto [begin, end] =
          share_of(b.begin, b.end, static_cast<size_t>(group_.local_rank()) * threads + m, p * threads);
      own += end - begin;
    }
  }
  const uint64_t updated = own * element * (p - 1);
  return one_host_ ? notice + updated + (layout_.total - own) * element * threads : updated;
}

// The result is equal on all ranks: the ranks of a host together have updated all parameters, and hosts have
// equal sums. A rank whose notice says 0 takes no further step, so the notice stays until all ranks have read
// it.
bool AllReduce::all_finite() const {
  bool finite = finite_;
  for (int r = 0; board_ && r < static_cast<int>(group_.local_ranks().size()); ++r)
    finite = finite && reinterpret_cast<const Notice*>(board_->region(r))->finite != 0;
  return finite;
}

// The update is not committed. All ranks throw, and the gradients are still in place.
void AllReduce::refuse_gradients() const {
  const auto first_in = [&](int local_rank, int thread) {
    auto* gradients = static_cast<std::byte*>(memory_->gradients(local_rank, thread));
    return first_not_finite(replicas_[0], [&](size_t i) {
      return at::from_blob(gradients + layout_.offset[i] * at::elementSize(options_.working),
                           {static_cast<int64_t>(sizes_[i])}, options_.working);
    });
  };
  for (int r = 0; one_host_ && r < group_.size(); ++r) {
    for (int m = 0; m < options_.threads; ++m) {
      const std::string name = first_in(r, m);
      if (!name.empty())
        refuse_gradient(group_.job_rank(r), step_.index, fmt::format("the gradient of {}", name));
    }
  }
  // Between hosts, the sum has replaced the gradients of this rank's first thread.
  const std::string name = one_host_ ? "" : first_in(group_.local_rank(), 0);
  const int self = group_.job_rank(group_.rank());
  if (!name.empty())
    refuse_gradient(self, step_.index, fmt::format("the sum of all ranks' gradients of {}", name));
  refuse_gradient(self, step_.index, "the mean gradient of all ranks");
}

void AllReduce::consensus() {
  hide_average();
  if (group_.size() == 1) return;
  at::NoGradGuard no_grad;
  average_buffers(group_, replicas_[0]);
}

void AllReduce::rebuild_in_order_of_arrival() {
  rebuilt_ = true;
  // If there are several threads, buckets do not overlap with backward.
  if (arrival_.size() != sizes_.size()) return;
  std::vector<int64_t> order(arrival_.begin(), arrival_.end());
  if (group_.size() > 1) broadcast(group_, order.data(), order.size(), DataType::kInt64, 0);
  relayout(std::vector<size_t>(order.begin(), order.end()));
}

// Moves the tensors within the flat memory. Its total size does not depend on their order.
void AllReduce::relayout(const std::vector<size_t>& order) {
  at::NoGradGuard no_grad;
  const auto snapshot = [this](auto view) {
    std::vector<at::Tensor> copies;
    for (size_t i = 0; i < sizes_.size(); ++i) copies.push_back(view(i).clone());
    return copies;
  };
  const auto like = [this](size_t i) { return replicas_[0].parameters[i].tensor; };
  const auto parameters =
      snapshot([&](size_t i) { return memory_->master_view(layout_.offset[i], like(i)); });
  std::vector<std::vector<at::Tensor>> states;
  for (int s = 0; s < rule_.state_count(); ++s) {
    states.push_back(snapshot([&](size_t i) { return memory_->state_view(s, layout_.offset[i], like(i)); }));
  }
  // No rank may write before every rank has read.
  if (group_.size() > 1) barrier(group_);
  layout_ = make_flat_layout(sizes_, order,
                             std::max<size_t>(1, options_.bucket_bytes / at::elementSize(options_.working)));
  // The new padding held gradients. Clear it, because the norm for clipping includes the padding.
  for (int m = 0; m < options_.threads; ++m)
    memory_->gradient_view(m, 0, at::empty({static_cast<int64_t>(layout_.total)}, options_.working)).zero_();
  if (!sharded() || group_.local_rank() == 0) {
    for (size_t i = 0; i < sizes_.size(); ++i) {
      for (int s = 0; s < rule_.state_count(); ++s)
        memory_->state_view(s, layout_.offset[i], like(i)).copy_(states[s][i]);
    }
  }
  copy_into_memory(parameters);
  place_tensors();
  make_exchange();
}

void AllReduce::compare_replicas() {
  std::vector<HashedRange> ranges;
  const size_t size = at::elementSize(options_.master);
  const auto* flat = static_cast<const std::byte*>(memory_->parameters(false));
  for (size_t i = 0; i < sizes_.size(); ++i) {
    ranges.push_back({replicas_[0].parameters[i].name, flat + layout_.offset[i] * size, sizes_[i] * size});
  }
  check_replicas_equal(group_, ranges, step_.index);
}

}  // namespace starling
