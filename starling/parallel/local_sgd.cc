#include "starling/parallel/local_sgd.h"

#include <ATen/ATen.h>

#include "starling/base/check.h"
#include "starling/parallel/exchange_parts.h"

namespace starling {
namespace {

// About one round in this many steps is measured. If a round has more steps, every round is measured. A
// measurement costs two forward passes.
constexpr int64_t kStepsAMeasurement = 16;

}  // namespace

LocalSgd::LocalSgd(const ModelFactory& factory, UpdateRule rule, const FlatReplicaOptions& options,
                   int64_t every, Group& group, const Clock& clock, const CodecSpec& codec,
                   const OuterStep& outer, int64_t local_from)
    : ReplicaStrategy(factory, std::move(rule), options, group, clock),
      every_(every),
      outer_(outer),
      local_from_(local_from) {
  STARLING_CHECK(every >= 1, "local SGD needs every >= 1, not {}", every);
  STARLING_CHECK(outer.momentum >= 0 && outer.momentum < 1 && outer.lr > 0, "outer momentum {}, rate {}",
                 outer.momentum, outer.lr);
  if (codec.kind != CodecKind::kNone) coded_.emplace(codec, replica_, group);
  if (outer.momentum > 0) delta_ = at::zeros_like(replica_.parameters());
  if (coded_ || delta_.defined() || outer.lr != 1) last_ = replica_.parameters().clone();
}

std::map<std::string, at::Tensor*> LocalSgd::own_ranges() {
  std::map<std::string, at::Tensor*> ranges;
  if (last_.defined()) ranges["last"] = &last_;
  if (delta_.defined()) ranges["delta"] = &delta_;
  return ranges;
}

void LocalSgd::average() {
  at::NoGradGuard no_grad;
  at::Tensor& x = replica_.parameters();
  if (!last_.defined()) {
    x.copy_(mean_over_ranks(x));
    return;
  }
  if (coded_) {
    x.sub_(last_);
    coded_->apply(x);
  } else {
    x.copy_(mean_over_ranks(x)).sub_(last_);
  }
  if (delta_.defined()) {
    delta_.mul_(outer_.momentum).add_(x);
    if (outer_.nesterov) {
      x.add_(delta_, outer_.momentum);
    } else {
      x.copy_(delta_);
    }
  }
  last_.add_(x, outer_.lr);
  x.copy_(last_);
}

bool LocalSgd::advance(StepReport& report) {
  update_replica();
  const int64_t every = step_.index <= local_from_ ? 1 : every_;
  if (step_.index % every != 0) return false;
  ++rounds_;
  const int64_t between = std::max<int64_t>(1, kStepsAMeasurement / every);
  const bool measurable = batch_.input.defined();  // an own loop keeps its batch to itself
  if (measurable && (step_.index / every) % between == 0) {
    measured_average(report);
  } else {
    exchanging(report, ExchangePhase::kParameters, [&] { average(); });
  }
  replica_.parameters_changed();
  return true;
}

void LocalSgd::measured_average(StepReport& report) {
  ++measured_;
  before_ += replica_.loss_of(batch_);
  exchanging(report, ExchangePhase::kParameters, [&] { average(); });
  replica_.parameters_changed();
  after_ += replica_.loss_of(batch_);
}

StrategyStats LocalSgd::strategy_stats() {
  double sums[2] = {before_, after_};
  if (group_.size() > 1) all_reduce(group_, sums, 2, DataType::kFp64, ReduceOp::kAvg);
  StrategyStats stats = {{"every", static_cast<double>(every_)}, {"rounds", rounds_}};
  if (measured_ > 0) {
    stats["loss_before_averaging"] = sums[0] / measured_;
    stats["loss_after_averaging"] = sums[1] / measured_;
  }
  if (coded_) coded_->tell(stats);
  tell_threads(stats);
  return stats;
}

std::unique_ptr<Strategy> make_local_sgd(const ExchangeParts& parts) {
  const ExchangeSpec& exchange = parts.spec.exchange;
  return std::make_unique<LocalSgd>(
      parts.factory, make_update_rule(parts.spec.optimizer), parts.replica, exchange.every, parts.group,
      parts.clock, codec_of(parts.spec),
      OuterStep{
          .momentum = exchange.block_momentum, .lr = exchange.outer_lr, .nesterov = exchange.outer_nesterov},
      exchange.local_from);
}

}  // namespace starling
