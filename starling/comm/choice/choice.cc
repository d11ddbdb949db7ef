#include "starling/comm/choice/choice.h"

#include "starling/comm/collective/direct.h"
#include "starling/comm/collective/pairwise.h"

namespace starling {

// Above kRankOrderRanks the costs of short and long parts must lead to the same order of addition.
static_assert(kMostPacedDirect <= kRankOrderRanks);

Algorithm Choice::of(CollectiveKind kind, int p, uint64_t bytes) const {
  if (carries_out(setup_.named, kind)) return setup_.named;
  if (setup_.named == Algorithm::kAuto) {
    const TuningEntry* entry = setup_.tuning.nearest(kind, bytes, setup_.ranks, setup_.hosts, setup_.link);
    if (entry != nullptr) return entry->algorithm;
  }
  // Only their owners know whether the blocks have equal sizes. kPairwise accepts unequal blocks.
  if (kind == CollectiveKind::kAllToAll) return Algorithm::kPairwise;
  // Ranks that drift apart do not share links in a ring, because each has one partner to receive from
  // (docs/benchmarks.md, "Codecs on a slow network").
  if (kind == CollectiveKind::kAllGather && bytes / static_cast<uint64_t>(p) >= kPacedBytes)
    return Algorithm::kRing;
  const bool reduces = kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kReduceScatter;
  const bool rank_order = reduces && p <= kRankOrderRanks;
  // The algorithms for more ranks add in different orders, so the measured link must not decide.
  const LinkCost link = reduces && !rank_order ? LinkCost() : link_;
  if (kind == CollectiveKind::kAllReduce && bytes * static_cast<uint64_t>(p) > kMostGatheredBytes) {
    // The algorithm must not hold all tensors at once.
    if (rank_order) return Algorithm::kDirect;
    const Algorithm found = cheapest(kind, p, static_cast<double>(bytes), link, false);
    return found == Algorithm::kBruck || found == Algorithm::kStar ? Algorithm::kDirect : found;
  }
  return cheapest(kind, p, static_cast<double>(bytes), link, rank_order);
}

}  // namespace starling
