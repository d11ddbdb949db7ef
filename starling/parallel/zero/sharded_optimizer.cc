#include "starling/parallel/zero/sharded_optimizer.h"

#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "starling/base/error.h"
#include "starling/c10d/data_type.h"
#include "starling/parallel/exchange_parts.h"
#include "starling/parallel/replica/codec_shapes.h"
#include "starling/parallel/replica/message_stats.h"
#include "starling/parallel/zero/sharded_parameters.h"

namespace starling {
namespace {

FlatReplicaOptions divisible(FlatReplicaOptions options, Group& group) {
  options.multiple_of = group.size();
  options.mean_over = &group;
  return options;
}

OwnedRange own_range(FlatReplica& replica, const Group& group) {
  const int64_t count = replica.parameters().numel() / group.size(), begin = count * group.rank();
  return {replica.optimized(), replica.layout(), elements_of(replica.parameters(), begin, count), begin};
}

}  // namespace

ShardedOptimizer::ShardedOptimizer(const ModelFactory& factory, UpdateRule rule, FlatReplicaOptions options,
                                   const CodecSpec* codec, Group& group, const Clock& clock)
    : ReplicaStrategy(factory, std::move(rule), divisible(std::move(options), group), group, clock),
      own_(own_range(replica_, group)) {
  shard_optimizer(*replica_.optimizer(), own_.parts(), "train.shard", "leave out --shard");
  if (codec == nullptr) return;
  if (replica_.parameters().scalar_type() != at::kFloat)
    throw ConfigError("exchange.codec",
                      "codecs compress fp32 values, and the parameters have another type; leave out --codec, "
                      "or convert the module to float");
  std::vector<at::Tensor> tensors;
  for (const NamedTensor& p : replica_.replica().parameters) tensors.push_back(p.tensor);
  const auto count = static_cast<size_t>(replica_.parameters().numel());
  coded_ = std::make_unique<CodedReduceScatter>(
      group, *codec, codec_shapes(tensors, replica_.layout().offset, count), count, 0);
}

void ShardedOptimizer::exchange_gradients(bool whole) {
  if (!replica_.options().own_gradients) replica_.check_gradients(step_.index);
  if (coded_) return exchange_coded(whole);
  at::Tensor& g = replica_.gradients();
  if (group_.size() == 1) return;
  const DataType type = data_type_of(g.scalar_type());
  if (whole) return all_reduce(group_, g.data_ptr(), g.numel(), type, ReduceOp::kAvg);
  reduced_ = at::empty({own_.count()}, g.options());
  reduce_scatter(group_, g.data_ptr(), reduced_.data_ptr(), static_cast<size_t>(own_.count()), type,
                 ReduceOp::kAvg);
}

void ShardedOptimizer::exchange_coded(bool whole) {
  const at::NoGradGuard no_grad;
  at::Tensor& g = replica_.gradients();
  reduced_ = at::empty({own_.count()}, g.options());
  coded_->apply(static_cast<uint64_t>(step_.index), codec_values(g), codec_values(reduced_));
  if (!whole) return;
  const at::Tensor own = std::exchange(reduced_, {});
  all_gather(group_, own.data_ptr(), g.data_ptr(), static_cast<size_t>(own_.count()), DataType::kFp32);
}

at::Tensor ShardedOptimizer::own_values() {
  if (!coded_) return {};
  const std::vector<float> values = coded_->state();
  return values.empty() ? at::Tensor() : at::tensor(values, at::kFloat);
}

void ShardedOptimizer::take_own_values(const at::Tensor& values) {
  const at::Tensor kept = values.to(at::kFloat).contiguous();
  coded_->load_state(codec_values(kept));
}

at::Tensor ShardedOptimizer::own_gradients() {
  at::Tensor place = replica_.gradients().narrow(0, own_.begin(), own_.count());
  if (!replica_.options().releases_gradients) {
    if (reduced_.defined()) place.copy_(std::exchange(reduced_, {}));
    held_ = replica_.gradients().numel();
    return place;
  }
  const at::Tensor own = reduced_.defined() ? std::exchange(reduced_, {}) : place.clone();
  replica_.release_gradients();
  held_ = own.numel();
  return own;
}

// Clips this rank's elements as FlatReplica::update() clips the whole gradient.
void ShardedOptimizer::clip(at::Tensor& gradients) const {
  const FlatReplicaOptions& options = replica_.options();
  if (options.clip_value > 0) gradients.clamp_(-options.clip_value, options.clip_value);
  if (options.clip_norm <= 0) return;
  double squares = replica_.own_squares(gradients, own_.begin());
  if (group_.size() > 1) all_reduce(group_, &squares, 1, DataType::kFp64, ReduceOp::kSum);
  const double norm = std::sqrt(sum_over_parts(options.parts, squares));
  if (norm > options.clip_norm) gradients.mul_(options.clip_norm / (norm + 1e-6));
}

bool ShardedOptimizer::advance(StepReport& report) {
  const at::NoGradGuard no_grad;
  at::Tensor gradients = own_gradients();
  clip(gradients);
  if (!replica_.options().own_gradients) replica_.optimizer()->scale_lr(step_.lr_factor);
  own_.step(*replica_.optimizer(), gradients, replica_.used());
  exchanging(report, ExchangePhase::kParameters, [&] {
    at::Tensor& x = replica_.parameters();
    if (group_.size() == 1) return;
    const at::Tensor own = x.narrow(0, own_.begin(), own_.count()).clone();
    all_gather(group_, own.data_ptr(), x.data_ptr(), static_cast<size_t>(own_.count()),
               data_type_of(x.scalar_type()));
  });
  replica_.parameters_changed();
  return true;
}

StrategyStats ShardedOptimizer::strategy_stats() {
  StrategyStats stats = {{"parameter_bytes", static_cast<double>(replica_.bytes())},
                         {"shard_elements", static_cast<double>(own_.count())},
                         {"gradient_elements", static_cast<double>(held_)}};
  if (!coded_) return stats;
  const double times = std::max<double>(1, static_cast<double>(coded_->times()));
  const auto others = static_cast<double>(replica_.parameters().numel() - own_.count());
  tell_messages(group_, static_cast<double>(coded_->sent()) / times, sizeof(float) * others, stats);
  stats["codec_bytes"] = static_cast<double>(coded_->kept_bytes());
  if (const std::optional<double> norm = coded_->residual_norm()) stats["residual_norm"] = *norm;
  return stats;
}

std::unique_ptr<Strategy> make_sharded_optimizer(const ExchangeParts& parts) {
  const Shard shard = parts.spec.train.shard;
  FlatReplicaOptions replica = parts.replica;
  replica.releases_gradients = shard != Shard::kOptimizer;
#ifndef STARLING_OWN_LOOPS_ONLY
  if (shard == Shard::kParameters) {
    const auto unit_bytes = static_cast<size_t>(parts.spec.train.bucket_mb * (1 << 20));
    return std::make_unique<ShardedParameters>(parts.factory, replica, unit_bytes, parts.group, parts.clock);
  }
#endif
  std::optional<CodecSpec> codec;
  if (parts.spec.exchange.codec != "none") codec = codec_of(parts.spec);
  return std::make_unique<ShardedOptimizer>(parts.factory, make_update_rule(parts.spec.optimizer), replica,
                                            codec ? &*codec : nullptr, parts.group, parts.clock);
}

}  // namespace starling
