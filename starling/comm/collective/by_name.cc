#include "starling/comm/collective/by_name.h"

#include "starling/base/check.h"
#include "starling/comm/collective/binomial_tree.h"
#include "starling/comm/collective/bruck.h"
#include "starling/comm/collective/direct.h"
#include "starling/comm/collective/double_tree.h"
#include "starling/comm/collective/halving_doubling.h"
#include "starling/comm/collective/ring.h"
#include "starling/comm/collective/star.h"

namespace starling {

void all_reduce_by(Algorithm algorithm, RemoteTeam& team, void* data, size_t count,
                   const Elements& elements) {
  if (team.size() == 1) return;
  switch (algorithm) {
    case Algorithm::kRing:
      return ring_all_reduce(team, data, count, elements);
    case Algorithm::kDirect:
      return direct_all_reduce(team, data, count, elements);
    case Algorithm::kHalvingDoubling:
      return halving_doubling_all_reduce(team, data, count, elements);
    case Algorithm::kBinomialTree:
      return binomial_all_reduce(team, data, count, elements);
    case Algorithm::kDoubleTree:
      return double_tree_all_reduce(team, data, count, elements);
    case Algorithm::kBruck:
      return bruck_all_reduce(team, data, count, elements);
    case Algorithm::kStar:
      return star_all_reduce(team, data, count, elements);
    default:
      STARLING_CHECK(false, "the algorithm {} does not carry out an all-reduce", name_of(algorithm));
  }
}

void reduce_scatter_by(Algorithm algorithm, RemoteTeam& team, std::span<const ConstBytes> parts, void* out,
                       const Elements& elements) {
  STARLING_CHECK(carries_out(algorithm, CollectiveKind::kReduceScatter),
                 "the algorithm {} does not carry out a reduce-scatter", name_of(algorithm));
  if (algorithm == Algorithm::kRing) return ring_reduce_scatter(team, parts, out, elements);
  direct_reduce_scatter(team, parts, out, elements);
}

void all_gather_by(Algorithm algorithm, RemoteTeam& team, std::span<const Bytes> parts) {
  if (team.size() == 1) return;
  if (algorithm == Algorithm::kDirect) return direct_all_gather(team, parts);
  if (algorithm == Algorithm::kRing) return ring_all_gather(team, parts);
  STARLING_CHECK(algorithm == Algorithm::kBruck, "the algorithm {} does not carry out an all-gather",
                 name_of(algorithm));
  bruck_all_gather(team, parts[team.me()].data(), parts[0].data(), parts[0].size());
}

}  // namespace starling
