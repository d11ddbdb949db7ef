#include "starling/parallel/local_sgd.h"

#include <ATen/ATen.h>

#include "starling/base/check.h"

namespace starling {
namespace {

// Two forward passes measure a round; one round in so many that they cost at most some five per cent of the steps.
constexpr int64_t kStepsAMeasurement = 16;

}  // namespace

LocalSgd::LocalSgd(const ModelFactory& factory, UpdateRule rule, const FlatReplicaOptions& options,
                   int64_t every, Group& group, const Clock& clock, const CodecSpec& codec)
    : ReplicaStrategy(factory, std::move(rule), options, group, clock), every_(every) {
  STARLING_CHECK(every >= 1, "local SGD averages every {} steps", every);
  if (codec.kind == CodecKind::kNone) return;
  coded_.emplace(codec, replica_);
  last_ = replica_.parameters().clone();
}

std::map<std::string, at::Tensor*> LocalSgd::own_ranges() {
  if (!coded_) return {};
  return {{"last", &last_}};
}

void LocalSgd::average() {
  at::NoGradGuard no_grad;
  at::Tensor& x = replica_.parameters();
  if (!coded_) {
    x.copy_(mean_over_ranks(x));
    return;
  }
  x.sub_(last_);
  coded_->apply(group_, x);
  last_.add_(x);
  x.copy_(last_);
}

bool LocalSgd::advance(StepReport& report) {
  replica_.update(step_);
  if (step_.index % every_ != 0) return false;
  ++rounds_;
  const int64_t between = std::max<int64_t>(1, kStepsAMeasurement / every_);
  if ((step_.index / every_) % between == 0) {
    measured_average(report);
  } else {
    exchanging(report, [&] { average(); });
  }
  replica_.parameters_changed();
  return true;
}

void LocalSgd::measured_average(StepReport& report) {
  ++measured_;
  before_ += replica_.loss_of(batch_);
  exchanging(report, [&] { average(); });
  replica_.parameters_changed();
  after_ += replica_.loss_of(batch_);
}

Fingerprint LocalSgd::fingerprint() {
  double sums[2] = {before_, after_};
  if (group_.size() > 1) group_.all_reduce(sums, 2, DataType::kFp64, ReduceOp::kAvg);
  Fingerprint print = {{"every", static_cast<double>(every_)}, {"rounds", rounds_}};
  if (measured_ > 0) {
    print["loss_before_averaging"] = sums[0] / measured_;
    print["loss_after_averaging"] = sums[1] / measured_;
  }
  if (coded_) coded_->tell(group_, print);
  return print;
}

}  // namespace starling
