#include "starling/comm/choice/cost.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>

#include "starling/base/check.h"
#include "starling/comm/collective/direct.h"
#include "starling/comm/collective/double_tree.h"
#include "starling/comm/collective/pairwise.h"

namespace starling {
namespace {

// Returns ⌈log2 p⌉.
int log2_up(int p) {
  return std::bit_width(static_cast<unsigned>(p - 1));
}

// Returns the cost of one collective after another.
CollectiveCost sum_of(const CollectiveCost& a, const CollectiveCost& b) {
  return {a.steps + b.steps, a.further + b.further, a.bytes + b.bytes, a.total_bytes + b.total_bytes,
          a.at_most || b.at_most};
}

CollectiveCost twice(const CollectiveCost& c) {
  return sum_of(c, c);
}

bool is_paced(int p, double n) {
  return n / p >= static_cast<double>(kPacedBytes);
}

// ring(), direct_reduce_scatter() and direct_all_gather() are halves of an all-reduce.
CollectiveCost ring(int p, double n) {
  const double moved = (p - 1) * n / p;
  return {p - 1.0, 0, moved, p * moved};
}

CollectiveCost pairwise(int p, double n) {
  CollectiveCost c = ring(p, n);
  if (is_paced(p, n)) {
    c.steps += p - 2;
    c.further += 2 * (p - 2);
  }
  return c;
}

CollectiveCost at_once(int p, double n) {
  const double moved = (p - 1) * n / p;
  return {1, std::max(0.0, p - 2.0), moved, p * moved};
}

bool is_direct_in_steps(int p, double n) {
  return is_paced(p, n) && p <= kMostPacedDirect;
}

CollectiveCost direct_reduce_scatter(int p, double n) {
  return is_direct_in_steps(p, n) ? pairwise(p, n) : at_once(p, n);
}

CollectiveCost direct_all_gather(int p, double n) {
  return is_direct_in_steps(p, n) ? ring(p, n) : at_once(p, n);
}

CollectiveCost halving_doubling(int p, double n) {
  const int q = static_cast<int>(std::bit_floor(static_cast<unsigned>(p)));
  const double moved = 2 * (q - 1) * n / q;
  CollectiveCost c{2.0 * log2_up(q), 0, moved, q * moved};
  if (q < p) {
    c.steps += 2;
    c.bytes += 2 * n;
    c.total_bytes += 2 * (p - q) * n;
  }
  return c;
}

CollectiveCost binomial_tree(int p, double n) {
  return {1.0 * log2_up(p), 0, log2_up(p) * n, (p - 1) * n};
}

CollectiveCost double_tree(int p, double n) {
  const int segments = tree_segments(static_cast<size_t>(n));
  const double steps = 2 * double_trees(p)[0].height + segments - 1;
  return {steps, 3 * steps, steps * 2 * n / segments, 2 * (p - 1) * n, true};
}

CollectiveCost star(int p, double n) {
  return {2, 2 * std::max(0.0, p - 2.0), 2 * (p - 1) * n, 2 * (p - 1) * n};
}

// `n` is the size of one block in bytes.
CollectiveCost bruck_all_gather(int p, double n) {
  return {1.0 * log2_up(p), 0, (p - 1) * n, p * (p - 1) * n};
}

CollectiveCost bruck_all_to_all(int p, double n) {
  double blocks = 0;
  for (int i = 0; i < p; ++i) blocks += std::popcount(static_cast<unsigned>(i));
  return {1.0 * log2_up(p), 0, blocks * n, p * blocks * n};
}

CollectiveCost all_reduce(Algorithm algorithm, int p, double n) {
  switch (algorithm) {
    case Algorithm::kRing:
      return twice(ring(p, n));
    case Algorithm::kDirect:
      return sum_of(direct_reduce_scatter(p, n), direct_all_gather(p, n));
    case Algorithm::kHalvingDoubling:
      return halving_doubling(p, n);
    case Algorithm::kBinomialTree:
      return twice(binomial_tree(p, n));
    case Algorithm::kDoubleTree:
      return double_tree(p, n);
    case Algorithm::kBruck:
      return bruck_all_gather(p, n);
    default:
      return star(p, n);
  }
}

}  // namespace

CollectiveCost cost_of(CollectiveKind kind, Algorithm algorithm, int p, double bytes) {
  STARLING_CHECK(carries_out(algorithm, kind), "{} by {}", name_of(kind), name_of(algorithm));
  if (p == 1) return {};
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return all_reduce(algorithm, p, bytes);
    case CollectiveKind::kReduceScatter:
      return algorithm == Algorithm::kRing ? ring(p, bytes) : direct_reduce_scatter(p, bytes);
    case CollectiveKind::kAllGather:
      return algorithm == Algorithm::kRing     ? ring(p, bytes)
             : algorithm == Algorithm::kDirect ? direct_all_gather(p, bytes)
                                               : bruck_all_gather(p, bytes / p);
    case CollectiveKind::kAllToAll:
      return algorithm == Algorithm::kPairwise ? pairwise(p, bytes) : bruck_all_to_all(p, bytes / p);
    case CollectiveKind::kBroadcast:
      return binomial_tree(p, bytes);
    default:  // barrier
      return {1.0 * log2_up(p), 0, 0, 0};
  }
}

Algorithm cheapest(CollectiveKind kind, int p, double bytes, const LinkCost& link, bool rank_order) {
  const auto candidates = algorithms_of(kind);
  Algorithm best = candidates.front();
  double least = std::numeric_limits<double>::infinity();
  for (const Algorithm algorithm : candidates) {
    if (rank_order && !keeps_rank_order(algorithm)) continue;
    const double seconds = cost_of(kind, algorithm, p, bytes).seconds(link);
    if (seconds < least) {
      least = seconds;
      best = algorithm;
    }
  }
  return best;
}

}  // namespace starling
