#include "starling/parallel/gossip.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace starling {
namespace {

constexpr uint32_t kMixTag = 0x60551;
// All ranks meet (mean loss, a wish to stop) only so often: gossip itself has no meeting.
constexpr int64_t kStepsBetweenAgreements = 32;

// The number of rows of the torus: the largest divisor of `size` that is not above its square root.
int torus_rows(int size) {
  int rows = static_cast<int>(std::sqrt(static_cast<double>(size)));
  while (size % rows != 0) --rows;
  return rows;
}

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
      const int rows = torus_rows(size), columns = size / rows;
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

Neighbours neighbours_of(GossipGraph graph, int rank, int size) {
  Neighbours result;
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
      neighbours_(neighbours_of(graph, group.rank(), group.size())),
      heard_(at::empty_like(replica_.parameters())) {}

// In rank order, oneself among them: bit-identical whatever arrives first.
void Gossip::mix() {
  at::NoGradGuard no_grad;
  at::Tensor& x = replica_.parameters();
  for (const int peer : neighbours_.tells) group_.send(x.data_ptr(), x.nbytes(), peer, kMixTag);
  at::Tensor sum = at::zeros_like(x);
  bool own_added = false;
  for (const int peer : neighbours_.hears) {
    if (!own_added && peer > group_.rank()) {
      sum.add_(x);
      own_added = true;
    }
    group_.recv(heard_.data_ptr(), heard_.nbytes(), peer, kMixTag);
    sum.add_(heard_);
  }
  if (!own_added) sum.add_(x);
  x.copy_(sum.div_(static_cast<double>(neighbours_.hears.size() + 1)));
  replica_.parameters_changed();
}

bool Gossip::advance(StepReport& report) {
  exchanging(report, [&] { mix(); });  // the gradient was taken at the old x
  replica_.update(step_);
  return step_.index % kStepsBetweenAgreements == 0;
}

Fingerprint Gossip::fingerprint() {
  at::NoGradGuard no_grad;
  replica_.hide();
  const at::Tensor mean = mean_over_ranks(replica_.parameters());
  double squares = replica_.squares(replica_.parameters() - mean);
  if (group_.size() > 1) group_.all_reduce(&squares, 1, DataType::kFp64, ReduceOp::kSum);
  return {{"degree", static_cast<double>(neighbours_.hears.size())},
          {"second_eigenvalue", second_eigenvalue(mixing_matrix(graph_, group_.size()), group_.size())},
          {"disagreement", std::sqrt(squares)}};
}

}  // namespace starling
