#include "starling/parallel/gossip.h"
#include "starling/comm/message_tags.h"
#include "starling/parallel/exchange_parts.h"
#include "starling/spec/neighbor_graph.h"

#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace starling {
namespace {

std::set<int> heard_by(GossipGraph graph, int rank, int size) {
  std::set<int> heard;
  const auto add = [&](int other) {
    if (other != rank) heard.insert(other);
  };
  switch (graph) {
    case GossipGraph::kRing:
      add((rank + 1) % size);
      add((rank + size - 1) % size);
      break;
    case GossipGraph::kTorus: {
      const int rows = static_cast<int>(torus_rows(size)), columns = size / rows;
      const int row = rank / columns, column = rank % columns;
      add((row + 1) % rows * columns + column);
      add((row + rows - 1) % rows * columns + column);
      add(row * columns + (column + 1) % columns);
      add(row * columns + (column + columns - 1) % columns);
      break;
    }
    case GossipGraph::kExponential:
      for (int hop = 1; hop < size; hop *= 2) add((rank + size - hop) % size);
      break;
  }
  return heard;
}

}  // namespace

GossipGraph gossip_graph(std::string_view name) {
  if (name == "torus") return GossipGraph::kTorus;
  return name == "exponential" ? GossipGraph::kExponential : GossipGraph::kRing;
}

Neighbors neighbors_of(GossipGraph graph, int rank, int size) {
  Neighbors result;
  const auto heard = heard_by(graph, rank, size);
  result.hears.assign(heard.begin(), heard.end());
  for (int other = 0; other < size; ++other) {
    if (heard_by(graph, other, size).count(rank) > 0) result.tells.push_back(other);
  }
  return result;
}

std::vector<double> mixing_matrix(GossipGraph graph, int size) {
  std::vector<double> matrix(static_cast<size_t>(size) * size, 0.0);
  for (int i = 0; i < size; ++i) {
    const auto heard = heard_by(graph, i, size);
    const double weight = 1.0 / static_cast<double>(heard.size() + 1);
    matrix[i * size + i] = weight;
    for (const int j : heard) matrix[i * size + j] = weight;
  }
  return matrix;
}

double second_eigenvalue(const std::vector<double>& matrix, int size) {
  if (size == 1) return 0;
  const at::Tensor w = at::tensor(matrix, at::kDouble).view({size, size});
  const at::Tensor rest = w - at::full({size, size}, 1.0 / size, at::kDouble);
  return at::linalg_eigvals(rest).abs().max().item<double>();
}

Gossip::Gossip(const ModelFactory& factory, UpdateRule rule, const FlatReplicaOptions& options,
               GossipGraph graph, Group& group, const Clock& clock)
    : ReplicaStrategy(factory, std::move(rule), options, group, clock),
      graph_(graph),
      neighbors_(neighbors_of(graph, group.rank(), group.size())),
      heard_(at::empty_like(replica_.parameters())) {}

// Adds the parameters in rank order, this rank's included. The sum is therefore bit-identical in any order of
// arrival.
void Gossip::mix() {
  at::NoGradGuard no_grad;
  at::Tensor& x = replica_.parameters();
  for (const int peer : neighbors_.tells) send(group_, x.data_ptr(), x.nbytes(), peer, kGossipTag);
  at::Tensor sum = at::zeros_like(x);
  bool own_added = false;
  for (const int peer : neighbors_.hears) {
    if (!own_added && peer > group_.rank()) {
      sum.add_(x);
      own_added = true;
    }
    recv(group_, heard_.data_ptr(), heard_.nbytes(), peer, kGossipTag);
    sum.add_(heard_);
  }
  if (!own_added) sum.add_(x);
  x.copy_(sum.div_(static_cast<double>(neighbors_.hears.size() + 1)));
  replica_.parameters_changed();
}

bool Gossip::advance(StepReport& report) {
  exchanging(report, ExchangePhase::kParameters, [&] { mix(); });  // the gradient was computed before mixing
  replica_.update(step_);
  return step_.index % kStepsBetweenAgreements == 0;
}

StrategyStats Gossip::strategy_stats() {
  at::NoGradGuard no_grad;
  replica_.hide();
  const at::Tensor mean = mean_over_ranks(replica_.parameters());
  double squares = replica_.squares(replica_.parameters() - mean);
  if (group_.size() > 1) all_reduce(group_, &squares, 1, DataType::kFp64, ReduceOp::kSum);
  return {{"degree", static_cast<double>(neighbors_.hears.size())},
          {"second_eigenvalue", second_eigenvalue(mixing_matrix(graph_, group_.size()), group_.size())},
          {"disagreement", std::sqrt(squares)}};
}

std::unique_ptr<Strategy> make_gossip(const ExchangeParts& parts) {
  return std::make_unique<Gossip>(parts.factory, make_update_rule(parts.spec.optimizer), parts.replica,
                                  gossip_graph(parts.spec.exchange.graph), parts.group, parts.clock);
}

}  // namespace starling
