// Choice: which algorithm carries out a collective between the hosts of a group. In this order: the one that the configuration
// names, the one that tuning found fastest, the one that the cost formulas find cheapest on the measured link.
//
// Without a name or tuning, a group of up to kRankOrderRanks takes only algorithms that add in rank order (direct, bruck, star): their
// results are equal bits, so what is measured never shows in a result. Among more ranks the logarithmic algorithms are worth
// more; name one, or tune, where two runs must give the same bits.
// Equal on all ranks: it is made of what they agree on.
#pragma once

#include <cstdint>
#include <string>

#include "starling/comm/algorithm.h"
#include "starling/comm/cost.h"
#include "starling/comm/tuning.h"

namespace starling {

constexpr int kRankOrderRanks = 16;
// bruck and star keep the tensors of all ranks in memory; auto takes them up to this size of all together.
constexpr uint64_t kMostGatheredBytes = 4 << 20;

class Choice {
 public:
  struct Setup {
    Algorithm named = Algorithm::kAuto;
    Tuning tuning;
    int ranks = 1;
    int hosts = 1;
    std::string link = "tcp";
  };

  explicit Choice(Setup setup) : setup_(std::move(setup)) {}

  // False where a name or tuning decides everything, so that the link need not be measured.
  bool needs_link() const {
    return setup_.named == Algorithm::kAuto && setup_.tuning.entries().empty() && setup_.hosts > 1;
  }
  void set_link(const LinkCost& link) { link_ = link; }
  const LinkCost& link() const { return link_; }

  // Among p hosts, for N bytes as in cost_of.
  Algorithm of(CollectiveKind kind, int p, uint64_t bytes) const;

 private:
  const Setup setup_;
  LinkCost link_;
};

}  // namespace starling
