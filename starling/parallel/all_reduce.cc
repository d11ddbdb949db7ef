#include "starling/parallel/all_reduce.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <cmath>
#include <numeric>

#include "starling/base/error.h"
#include "starling/c10d/data_type.h"
#include "starling/parallel/replica_hash.h"

namespace starling {
namespace {

bool choose_divided(const AllReduceOptions& options, size_t local_ranks) {
  // One copy for all ranks of a host is faster as soon as there are two: each rank writes 1/p of the parameters.
  return options.share == OptimizerShare::kDivided ||
         (options.share == OptimizerShare::kAuto && local_ranks > 1);
}

}  // namespace

AllReduce::AllReduce(const ModelFactory& factory, UpdateRule rule, const AllReduceOptions& options,
                     Group& group, const Clock& clock)
    : options_(options), rule_(std::move(rule)), group_(group), clock_(clock) {
  const size_t locals = group.local_ranks().size();
  one_host_ = static_cast<int>(locals) == group.size();
  for (int m = 0; m < options.members; ++m)
    replicas_.push_back(make_replica(factory, options.working, options.seed));
  for (Replica& replica : replicas_) {
    if (options.channels_last) to_channels_last(replica);
  }
  for (const NamedTensor& p : replicas_[0].parameters) sizes_.push_back(p.tensor.numel());
  std::vector<size_t> order(sizes_.size());  // backward meets the parameters last to first, roughly
  for (size_t i = 0; i < order.size(); ++i) order[i] = order.size() - 1 - i;
  const size_t bucket_size = std::max<size_t>(1, options.bucket_bytes / at::elementSize(options.working));
  layout_ = make_flat_layout(sizes_, order, bucket_size);

  FlatMemoryOptions memory;
  memory.total = layout_.total;
  memory.states = rule_.state_count();
  memory.master = options.master;
  memory.working = options.working;
  memory.divided = locals > 1 && choose_divided(options, locals);
  memory.members = options.members;
  memory.transactional = options.transactional;
  memory_ = std::make_unique<FlatMemory>(group, memory);
  if (locals > 1) board_ = group.allocate_window(sizeof(Notice));
  if (options.members > 1) team_ = std::make_unique<ThreadTeam>(options.members);

  std::vector<at::Tensor> initial;
  for (const NamedTensor& p : replicas_[0].parameters)
    initial.push_back(p.tensor.detach().to(options.master).clone());
  copy_into_memory(initial);
  if (group.size() > 1 && !(one_host_ && memory.divided)) {
    group.broadcast(memory_->parameters(false), layout_.total, data_type_of(options.master), 0);
    refresh_working();
  }
  place_tensors();
  install_slots();
  make_exchange();
  consensus();
  rebuilt_ = options.transactional;  // moving tensors about is no transaction
}

AllReduce::~AllReduce() = default;

// Copies the parameters (all of them, by index, master type) into flat memory. One rank of a host writes what is shared.
void AllReduce::copy_into_memory(const std::vector<at::Tensor>& parameters) {
  at::NoGradGuard no_grad;
  if (!divided() || group_.local_rank() == 0) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      memory_->master_view(layout_.offset[i], replicas_[0].parameters[i].tensor).copy_(parameters[i]);
    }
    refresh_working();
  }
  // On every rank: another host may have a single rank, which divides nothing.
  if (divided() || !one_host_) group_.barrier();
}

void AllReduce::refresh_working() {
  if (options_.working == options_.master) return;
  const at::Tensor flat = at::empty({static_cast<int64_t>(layout_.total)});
  memory_->working_view(0, flat).copy_(memory_->master_view(0, flat));
}

// Makes the module's parameters views of flat memory, and binds the gradient slots, if there are any yet.
void AllReduce::place_tensors() {
  at::NoGradGuard no_grad;
  for (size_t m = 0; m < replicas_.size(); ++m) {
    for (size_t i = 0; i < sizes_.size(); ++i) {
      at::Tensor& p = replicas_[m].parameters[i].tensor;
      const bool in_master = p.scalar_type() == options_.master;  // bf16 runs keep batch norm in fp32
      p.set_data(in_master ? memory_->master_view(layout_.offset[i], p)
                           : memory_->working_view(layout_.offset[i], p));
      if (!slots_.empty())
        slots_[m][i].slot->bind(memory_->gradient_view(static_cast<int>(m), layout_.offset[i], p));
    }
  }
}

void AllReduce::install_slots() {
  slots_.resize(replicas_.size());
  for (size_t m = 0; m < replicas_.size(); ++m) {
    for (size_t i = 0; i < sizes_.size(); ++i) {
      // With several members the buckets are complete when all members have finished (forward_backward).
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
    exchange_ = make_host_exchange(group_, clock_, layout_.buckets.size(), work);
    return;
  }
  const BucketWork reduce = [this](size_t bucket) {
    const Bucket& b = layout_.buckets[bucket];
    const size_t size = at::elementSize(options_.working);
    const auto gradients_of = [&](int member) {
      auto* own = static_cast<std::byte*>(memory_->gradients(group_.local_rank(), member));
      return at::from_blob(own + b.begin * size, {static_cast<int64_t>(b.size())}, options_.working);
    };
    at::Tensor sum = gradients_of(0);
    for (int m = 1; m < options_.members; ++m) sum.add_(gradients_of(m));
    group_.all_reduce(sum.data_ptr(), b.size(), data_type_of(options_.working), ReduceOp::kSum);
  };
  exchange_ = make_network_exchange(group_, clock_, layout_.buckets.size(), reduce, work);
}

void AllReduce::begin_step(const Step& step) {
  step_ = step;
  update_scale_ = 1.0 / (static_cast<double>(group_.size()) * options_.members);
  for (auto& member : slots_) {
    for (auto& s : member) s.slot->begin();
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

double AllReduce::member_forward_backward(int member, const Batch& batch) {
  const Model& model = replicas_[member].model;
  const at::Tensor loss = batch_loss(model, batch, options_.working, options_.channels_last);
  const double weight = weight_of(batch);
  const double value = loss.item<double>() * weight;
  if (!std::isfinite(value)) refuse_loss(replicas_[0], group_.rank(), step_.index, value);
  if (member == 0) {
    own_loss_ = value;
    post_notice();
  }
  (weight == 1 ? loss : loss * weight).backward();
  for (auto& s : slots_[member]) s.slot->fill_unused();
  return value;
}

// By which a member's mean counts, so that the mean over all members of all ranks is the mean over the samples.
double AllReduce::weight_of(const Batch& batch) const {
  if (options_.global_batch == 0) return 1;
  return static_cast<double>(batch.size() * group_.size() * options_.members) /
         static_cast<double>(options_.global_batch);
}

double AllReduce::forward_backward(const Batch& batch) {
  const Nanoseconds start = clock_.now();
  if (!team_) {
    member_forward_backward(0, batch);
  } else {
    std::vector<double> losses(team_->size());
    team_->run([&](int m) {
      const int64_t begin = batch.size() * m / team_->size();
      const int64_t end = batch.size() * (m + 1) / team_->size();
      losses[m] = member_forward_backward(m, batch.part(begin, end - begin));
    });
    own_loss_ = std::accumulate(losses.begin(), losses.end(), 0.0) / team_->size();
    post_notice();
    for (size_t b = 0; b < layout_.buckets.size(); ++b) bucket_complete(b);
  }
  forward_backward_s_ = to_seconds(clock_.now() - start);
  return own_loss_;
}

// Peers read it once they have seen our first bucket, and not after they have said that their step is done.
void AllReduce::post_notice() {
  if (board_)
    *reinterpret_cast<Notice*>(board_->region(group_.local_rank())) = {own_loss_,
                                                                       step_.stop_requested ? 1.0 : 0.0};
}

void AllReduce::read_notices(StepReport& report) {
  Notice sum{own_loss_, step_.stop_requested ? 1.0 : 0.0};
  if (!one_host_) {
    group_.all_reduce(&sum, 2, DataType::kFp64, ReduceOp::kSum);
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
  const BucketExchange::Finish finish = exchange_->finish();
  StepReport report;
  const Nanoseconds reading = clock_.now();
  read_notices(report);
  const double notices_s =
      one_host_ ? 0 : to_seconds(clock_.now() - reading);  // between hosts it is an exchange
  if (options_.clip_norm > 0) apply_clipped();
  const double waited = finish.waited_s + notices_s + exchange_->wait_for_all();
  memory_->commit(step_.index);
  whole_step_ = step_.index;
  const int self = group_.rank();
  report.slowest_rank = group_.size() == 1         ? -1
                        : finish.slowest_local < 0 ? self
                                                   : group_.local_ranks()[finish.slowest_local];
  report.exposed_comm_s = waited;
  report.bytes_sent = bytes_in_windows();
  report.compute_s = forward_backward_s_ + to_seconds(clock_.now() - start) - waited;
  if (options_.hash_every > 0 && step_.index % options_.hash_every == 0) compare_replicas();
  if (!rebuilt_) rebuild_in_order_of_arrival();
  return report;
}

// What peers on this host read of this rank's memory in a step, in elements of the flat range W, p ranks: of the gradients
// what the others reduce, W (p - 1)/p (divided) or W (p - 1) (replicated); of the parameters the share that this rank
// updated, W/p, once for each of the others (divided). Between hosts the group counts what enters sockets.
uint64_t AllReduce::bytes_in_windows() const {
  const uint64_t p = group_.local_ranks().size();
  if (p == 1) return 0;
  const uint64_t gradients = layout_.total * at::elementSize(options_.working) * options_.members;
  const uint64_t parameters = layout_.total * at::elementSize(options_.working);
  const uint64_t updated = divided() ? parameters * (p - 1) / p : 0;
  if (!one_host_) return updated;
  return updated + (divided() ? gradients * (p - 1) / p : gradients * (p - 1));
}

void AllReduce::consensus() {
  if (group_.size() == 1) return;
  at::NoGradGuard no_grad;
  for (NamedTensor& b : replicas_[0].buffers) {
    at::Tensor whole = b.tensor.contiguous();
    group_.broadcast(whole.data_ptr(), whole.numel(), data_type_of(whole.scalar_type()), 0);
    b.tensor.copy_(whole);
  }
}

void AllReduce::rebuild_in_order_of_arrival() {
  rebuilt_ = true;
  if (arrival_.size() != sizes_.size()) return;  // several members: buckets do not overlap with backward
  std::vector<int64_t> order(arrival_.begin(), arrival_.end());
  if (group_.size() > 1) group_.broadcast(order.data(), order.size(), DataType::kInt64, 0);
  relayout(std::vector<size_t>(order.begin(), order.end()));
}

// Same memory, other places: the total does not depend on the order.
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
  if (group_.size() > 1) group_.barrier();  // nobody writes before everybody has read
  layout_ = make_flat_layout(sizes_, order,
                             std::max<size_t>(1, options_.bucket_bytes / at::elementSize(options_.working)));
  // What is padding now held gradients; the norm that clips is summed over padding too.
  for (int m = 0; m < options_.members; ++m)
    memory_->gradient_view(m, 0, at::empty({static_cast<int64_t>(layout_.total)}, options_.working)).zero_();
  if (!divided() || group_.local_rank() == 0) {
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
