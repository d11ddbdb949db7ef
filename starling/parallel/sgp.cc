#include "starling/parallel/sgp.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "starling/base/error.h"
#include "starling/comm/message_tags.h"
#include "starling/parallel/exchange_parts.h"
#include "starling/parallel/gossip.h"

namespace starling {

OutNeighbors out_neighbors_of(const std::string& graph, int size) {
  if (graph == "one-peer") {
    int rounds = 0;
    while ((1 << rounds) < size) ++rounds;
    return [size, rounds](int rank, int64_t round) {
      if (rounds == 0) return std::vector<int>();
      return std::vector<int>{(rank + (1 << (round % rounds))) % size};
    };
  }
  std::vector<std::vector<int>> tells;
  for (int rank = 0; rank < size; ++rank)
    tells.push_back(neighbors_of(gossip_graph(graph), rank, size).tells);
  return [tells](int rank, int64_t) { return tells[static_cast<size_t>(rank)]; };
}

Sgp::Sgp(const ModelFactory& factory, UpdateRule rule, const FlatReplicaOptions& options, OutNeighbors out,
         Group& group, const Clock& clock)
    : ReplicaStrategy(factory, std::move(rule), options, group, clock),
      out_(std::move(out)),
      sums_(replica_.parameters().clone()),
      part_(at::empty_like(sums_)),
      heard_(at::empty_like(sums_)) {}

bool Sgp::advance(StepReport& report) {
  {
    const at::NoGradGuard no_grad;
    part_.copy_(replica_.parameters());
    replica_.update(step_);
    // The difference first: it rounds far less than the sum of two whole parameters.
    sums_.add_(part_.neg_().add_(replica_.parameters()));
  }
  exchanging(report, ExchangePhase::kParameters, [&] { push(); });
  return step_.index % kStepsBetweenAgreements == 0;
}

// Adds in rank order, this rank's part included. The sum is therefore bit-identical in any order of arrival.
void Sgp::push() {
  const at::NoGradGuard no_grad;
  const int64_t round = step_.index - 1;
  const std::vector<int> tells = out_(group_.rank(), round);
  const double share = 1.0 / static_cast<double>(tells.size() + 1);
  part_.copy_(sums_).mul_(share);
  const double own_weight = weight_ * share;
  for (const int peer : tells) {
    send(group_, &own_weight, sizeof(own_weight), peer, kExchangeTag);
    send(group_, part_.data_ptr(), part_.nbytes(), peer, kExchangeTag);
  }
  sums_.zero_();
  weight_ = 0;
  for (int peer = 0; peer < group_.size(); ++peer) {
    if (peer == group_.rank()) {
      sums_.add_(part_);
      weight_ += own_weight;
      continue;
    }
    const std::vector<int> told = out_(peer, round);
    if (std::find(told.begin(), told.end(), group_.rank()) == told.end()) continue;
    double weight = 0;
    recv(group_, &weight, sizeof(weight), peer, kExchangeTag);
    recv(group_, heard_.data_ptr(), heard_.nbytes(), peer, kExchangeTag);
    sums_.add_(heard_);
    weight_ += weight;
  }
  replica_.parameters().copy_(sums_);
  if (weight_ != 1) replica_.parameters().div_(weight_);
  replica_.parameters_changed();
}

StrategyStats Sgp::strategy_stats() {
  const at::NoGradGuard no_grad;
  replica_.hide();
  const at::Tensor mean = mean_over_ranks(sums_);
  double squares = replica_.squares(replica_.parameters() - mean), least = weight_;
  if (group_.size() > 1) {
    all_reduce(group_, &squares, 1, DataType::kFp64, ReduceOp::kSum);
    all_reduce(group_, &least, 1, DataType::kFp64, ReduceOp::kMin);
  }
  return {{"disagreement", std::sqrt(squares)}, {"least_weight", least}};
}

// The weight as three floats, whose sum is the weight exactly.
at::Tensor Sgp::own_values() {
  const at::Tensor values = at::zeros({3}, at::kFloat);
  double rest = weight_;
  for (int i = 0; i < 3; ++i) {
    values.data_ptr<float>()[i] = static_cast<float>(rest);
    rest -= static_cast<double>(values.data_ptr<float>()[i]);
  }
  return values;
}

void Sgp::take_own_values(const at::Tensor& values) {
  if (values.numel() != 3)
    throw Error(ErrorCode::kCheckpoint,
                "the checkpoint has no weight of sgp: resume with the same --exchange");
  const float* parts = values.data_ptr<float>();
  weight_ = static_cast<double>(parts[0]) + static_cast<double>(parts[1]) + static_cast<double>(parts[2]);
}

std::unique_ptr<Strategy> make_sgp(const ExchangeParts& parts) {
  return std::make_unique<Sgp>(parts.factory, make_update_rule(parts.spec.optimizer), parts.replica,
                               out_neighbors_of(parts.spec.exchange.graph, parts.group.size()), parts.group,
                               parts.clock);
}

}  // namespace starling
