#include "starling/parallel/tensor_parallel.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "starling/parallel/replica/gather_state.h"
#include "starling/parallel/replica/replica.h"
#include "starling/parallel/replica/replica_hash.h"
#include "starling/parallel/replica/tensor_state.h"

namespace starling {
TensorParallel::TensorParallel(ModelFactory factory, Group& tensor, std::vector<Group*> counting,
                               const Clock& clock, const MakeExchange& make_exchange, int64_t hash_every,
                               TensorPlan plan)
    : own_group_(std::make_unique<TensorGroup>(tensor, clock)),
      group_(*own_group_),
      counting_(std::move(counting)),
      plan_(std::move(plan)),
      hash_every_(hash_every) {
  make_exchange_of(sharded(std::move(factory)), make_exchange);
}

TensorParallel::TensorParallel(const ModelFactory& part, ModelSharding sharding, TensorGroup& tensor,
                               std::vector<Group*> counting, const MakeExchange& make_exchange,
                               int64_t hash_every)
    : group_(tensor),
      counting_(std::move(counting)),
      sharding_(std::move(sharding)),
      hash_every_(hash_every) {
  make_exchange_of(part, make_exchange);
}

void TensorParallel::make_exchange_of(const ModelFactory& part, const MakeExchange& make_exchange) {
  ModelParts parts;
  parts.group = parts.slices = &group_.group();
  // Making a model shows which parameters are sharded. The probe takes its turn with other ranks of this
  // process, and leaves the default generator as it is.
  const Model probe = seeded_model(part, 0);
  for (const auto& p : probe.module->named_parameters()) {
    const auto slice = sharding_.slices.find(p.key());
    const bool whole = slice == sharding_.slices.end();
    if (whole && group_.rank() != 0) parts.counted_elsewhere.push_back(p.key());
    if (!whole) parts.sliced.push_back(p.key());
    whole_parameters_ += whole ? p.value().numel() : c10::multiply_integers(slice->second.sizes);
  }
  exchange_ = make_exchange(part, parts);
}

ModelFactory TensorParallel::sharded(ModelFactory factory) {
  return [this, factory = std::move(factory)] {
    Model model = factory();
    sharding_ = shard_model(model, group_, plan_);
    return model;
  };
}

uint64_t TensorParallel::counted_bytes() const {
  uint64_t bytes = 0;
  for (const Group* group : counting_) bytes += group->traffic().sent();
  return bytes;
}

void TensorParallel::begin_step(const Step& step) {
  step_ = step.index;
  bytes_before_ = counted_bytes();
  Step agreed = step;
  double stop = step.stop_requested ? 1 : 0;
  all_reduce(group_.group(), &stop, 1, DataType::kFp64, ReduceOp::kMax);
  agreed.stop_requested = stop > 0;
  group_.reset_traffic();
  exchange_->begin_step(agreed);
}

double TensorParallel::forward_backward(const Batch& batch) {
  tokens_ = batch.input.dim() > 1 ? batch.input.size(0) * batch.input.size(1) : batch.size();
  return exchange_->forward_backward(batch);
}

StepReport TensorParallel::update() {
  StepReport report = exchange_->update();
  // Each rank of the replica asks other servers, which may tell of a request to stop at other steps.
  if (!exchange_->bytes_from_servers().empty()) {
    double stop = report.stop ? 1 : 0;
    all_reduce(group_.group(), &stop, 1, DataType::kFp64, ReduceOp::kMax);
    report.stop = stop > 0;
  }
  report.expose(ExchangePhase::kActivations, group_.seconds());
  report.compute_s = std::max(0.0, report.compute_s - group_.seconds());
  report.bytes_sent += counted_bytes() - bytes_before_;
  traffic_ = group_.traffic();
  if (hash_every_ > 0 && step_ % hash_every_ == 0) compare_copies();
  return report;
}

// Compares the parameters that every rank of the replica holds whole. Parameters that this rank has let go,
// such as those of other stages, have less memory than elements.
void TensorParallel::compare_copies() {
  std::vector<at::Tensor> copies;
  std::vector<HashedRange> ranges;
  copies.reserve(evaluated().parameters.size());
  ranges.reserve(evaluated().parameters.size());
  for (const NamedTensor& p : evaluated().parameters) {
    if (sharding_.slices.contains(p.name) || p.tensor.storage().nbytes() < p.tensor.nbytes()) continue;
    copies.push_back(p.tensor.detach().contiguous());
    ranges.push_back(
        {p.name, static_cast<const std::byte*>(copies.back().data_ptr()), copies.back().nbytes()});
  }
  check_replicas_equal(group_.group(), ranges, step_);
}

void TensorParallel::consensus() {
  exchange_->consensus();
}

namespace {

// Returns true for the state of one rank that no other rank shares: what the program's own optimizer and
// codecs keep.
bool is_of_one_rank(const std::string& name) {
  return name.starts_with("own_optimizer") || name.starts_with("values@");
}

// "values@0/NAME" of rank 1 is "values@0#1/NAME" in the whole state.
std::string mark_of(int rank) {
  return fmt::format("#{}/", rank);
}

}  // namespace

StrategyState TensorParallel::state() {
  at::NoGradGuard no_grad;
  StrategyState part = exchange_->state();
  StrategyState own;
  const std::string mark = mark_of(group_.rank());
  std::erase_if(part.optimizer, [&](const auto& item) {
    if (!is_of_one_rank(item.first)) return false;
    std::string name = item.first;
    own.optimizer[name.replace(name.find('/'), 1, mark)] = item.second;
    return true;
  });
  gather_state(group_.group(), own);
  StrategyState whole;
  whole.step = part.step;
  whole.parameters = join_state(part.parameters, sharding_.slices, group_.group());
  whole.optimizer = join_state(part.optimizer, sharding_.slices, group_.group());
  whole.optimizer.merge(own.optimizer);
  whole.buffers = std::move(part.buffers);
  return whole;
}

void TensorParallel::load_state(const StrategyState& state) {
  at::NoGradGuard no_grad;
  StrategyState part;
  part.step = state.step;
  part.parameters = cut_state(state.parameters, sharding_.slices, group_.size(), group_.rank());
  part.optimizer = cut_state(state.optimizer, sharding_.slices, group_.size(), group_.rank());
  const std::string mark = mark_of(group_.rank());
  for (const auto& [name, tensor] : state.optimizer) {
    const size_t at = name.find(mark);
    if (!is_of_one_rank(name) || at == std::string::npos) continue;
    std::string own = name;
    part.optimizer[own.replace(at, mark.size(), "/")] = tensor;
  }
  part.buffers = state.buffers;
  exchange_->load_state(part);
}

StrategyStats TensorParallel::strategy_stats() {
  StrategyStats stats = exchange_->strategy_stats();
  double all = 0, in_layers = 0;
  std::set<std::string> layers;  // of this rank; a pipeline stage has only some
  for (const auto& [name, traffic] : traffic_) {
    all += traffic.elements;
    const std::string& prefix = sharding_.transformer_prefix;
    if (prefix.empty() || !name.starts_with(prefix)) continue;
    in_layers += traffic.elements;
    layers.insert(name.substr(0, name.find('.', prefix.size())));
  }
  const double t = group_.size();
  stats["tensor_ranks"] = t;
  stats["tensor_elements"] = all;
  stats["whole_parameters"] = static_cast<double>(whole_parameters_);
  stats["held_parameters"] = static_cast<double>(parameter_count(evaluated()));
  if (!layers.empty()) {
    stats["layer_elements"] = in_layers / static_cast<double>(layers.size());
    stats["layer_formula"] =
        8 * static_cast<double>(tokens_) * static_cast<double>(sharding_.width) * (t - 1) / t;
  }
  return stats;
}

}  // namespace starling
