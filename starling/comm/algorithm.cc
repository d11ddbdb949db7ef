#include "starling/comm/algorithm.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "starling/base/error.h"

namespace starling {
namespace {

struct Named {
  Algorithm algorithm;
  const char* name;
};
constexpr Named kNames[] = {{Algorithm::kAuto, "auto"},
                            {Algorithm::kRing, "ring"},
                            {Algorithm::kDirect, "direct"},
                            {Algorithm::kHalvingDoubling, "halving-doubling"},
                            {Algorithm::kBinomialTree, "binomial-tree"},
                            {Algorithm::kDoubleTree, "double-tree"},
                            {Algorithm::kBruck, "bruck"},
                            {Algorithm::kPairwise, "pairwise"},
                            {Algorithm::kStar, "star"},
                            {Algorithm::kDissemination, "dissemination"}};

constexpr std::array kAllReduce = {
    Algorithm::kDirect,       Algorithm::kRing,       Algorithm::kHalvingDoubling,
    Algorithm::kBinomialTree, Algorithm::kDoubleTree, Algorithm::kBruck,
    Algorithm::kStar};
constexpr std::array kReduceScatter = {Algorithm::kDirect, Algorithm::kRing};
constexpr std::array kAllGather = {Algorithm::kRing, Algorithm::kDirect, Algorithm::kBruck};
constexpr std::array kAllToAll = {Algorithm::kPairwise, Algorithm::kBruck};
constexpr std::array kBroadcast = {Algorithm::kBinomialTree};
constexpr std::array kBarrier = {Algorithm::kDissemination};

}  // namespace

const char* name_of(Algorithm algorithm) {
  for (const Named& named : kNames) {
    if (named.algorithm == algorithm) return named.name;
  }
  return "unknown algorithm";
}

Algorithm algorithm_named(const std::string& name) {
  if (name == "hierarchical") return Algorithm::kAuto;
  for (const Named& named : kNames) {
    if (name == named.name) return named.algorithm;
  }
  throw ConfigError("comm.algorithm",
                    fmt::format("there is no algorithm \"{}\": use auto, ring, direct, halving-doubling, "
                                "binomial-tree, double-tree, bruck, star or hierarchical",
                                name));
}

std::span<const Algorithm> algorithms_of(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return kAllReduce;
    case CollectiveKind::kReduceScatter:
      return kReduceScatter;
    case CollectiveKind::kAllGather:
      return kAllGather;
    case CollectiveKind::kAllToAll:
      return kAllToAll;
    case CollectiveKind::kBroadcast:
      return kBroadcast;
    case CollectiveKind::kBarrier:
      return kBarrier;
    default:
      return {};
  }
}

bool carries_out(Algorithm algorithm, CollectiveKind kind) {
  const auto all = algorithms_of(kind);
  return std::find(all.begin(), all.end(), algorithm) != all.end();
}

bool keeps_rank_order(Algorithm algorithm) {
  return algorithm == Algorithm::kDirect || algorithm == Algorithm::kBruck || algorithm == Algorithm::kStar;
}

}  // namespace starling
