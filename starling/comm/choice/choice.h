// Choice: which algorithm carries out a collective between the hosts of a group.
//
// It takes the algorithm that the configuration names. Without a name, it takes the algorithm that tuning
// found fastest. Without tuning, an all-to-all is pairwise, and an all-gather of long blocks is a ring. Every
// other collective then takes the cheapest algorithm by the cost formulas on the measured link.
//
// Without a name or tuning, a measurement never changes a result. Up to kRankOrderRanks hosts, the choice has
// only algorithms that add in rank order (direct, bruck, star), whose results have equal bits. Among more
// hosts the logarithmic algorithms save more. Reductions among so many hosts are chosen for the default
// LinkCost, not for the measured one. All ranks choose alike, because they agree on everything that the
// choice depends on.
//
// A named algorithm that does not carry out a collective leaves that collective to this choice.
#pragma once

#include <cstdint>
#include <string>

#include "starling/comm/algorithm.h"
#include "starling/comm/choice/cost.h"
#include "starling/comm/choice/tuning.h"

namespace starling {

// Largest number of hosts among which kAuto adds in rank order. A larger value excludes the logarithmic
// algorithms from more groups.
constexpr int kRankOrderRanks = 16;
// An all-reduce by bruck or star keeps the tensors of all hosts in memory. kAuto uses them if all tensors
// together have at most this many bytes.
constexpr uint64_t kMostGatheredBytes = 4 << 20;

// Choice chooses the algorithms of one group.
class Choice {
 public:
  // Setup is everything that the choice depends on, except the link.
  struct Setup {
    Algorithm named = Algorithm::kAuto;
    Tuning tuning;
    int ranks = 1;
    int hosts = 1;
    std::string link = "tcp";
  };

  // All ranks pass equal setups.
  explicit Choice(Setup setup) : setup_(std::move(setup)) {}

  // Returns false if the options of the group name an algorithm, if the tuning has entries, or if there is
  // only one host. The link then need not be measured.
  bool needs_link() const {
    return setup_.named == Algorithm::kAuto && setup_.tuning.entries().empty() && setup_.hosts > 1;
  }
  // Sets the measured link.
  void set_link(const LinkCost& link) { link_ = link; }
  // The measured link, or the default.
  const LinkCost& link() const { return link_; }

  // Returns the algorithm for `kind` among p hosts. `bytes` is N as in cost_of() (cost.h).
  Algorithm of(CollectiveKind kind, int p, uint64_t bytes) const;

 private:
  const Setup setup_;
  LinkCost link_;
};

}  // namespace starling
