// Membership is the list of ranks that are left in a run. The survivors of a loss agree on it here.
//
// Every change of the list has a number, the generation. The store keeps one list for each generation: the
// first that is put (Store::put_if_absent). A rank that proposes another list later, for example because it
// was stopped meanwhile, reads the list that was put first.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "starling/net/store/store.h"

namespace starling {

// Membership is the list of one generation.
struct Membership {
  int64_t generation = 0;  // the number of changes since the run began
  std::vector<int> ranks;  // ascending, by the numbers that the ranks had when the run began
};

// Returns generation 0: the ranks 0 … ranks - 1.
Membership full_membership(int ranks);

// MembershipRules says how long the ranks wait for each other, and which of them may continue.
struct MembershipRules {
  // How long the ranks that are present wait for a rank that is neither present nor lost.
  std::chrono::milliseconds patience{60'000};
  // The rank that a TimeoutError has named before the agreement, or -1. If only this rank is missing, the
  // other ranks wait for suspect_patience instead of patience.
  int suspect = -1;
  std::chrono::milliseconds suspect_patience{0};
  // Whether at least half of the ranks must be present. A rank that has finished, or whose death is known
  // (dead_key), does not count. Half is enough, because only ranks that reach the store can agree.
  bool majority = true;
  // Asks the launcher to end a rank that did not come. `why` is the reason. Empty: there is no launcher.
  std::function<void(int rank, const std::string& why)> evict = {};
  // How long the ranks wait for the news of that rank's death after the call of evict().
  std::chrono::milliseconds eviction{5'000};
};

// Returns the membership of the next generation, equal on all its ranks. Collective over the ranks of
// `before` that are left.
//
// Each rank announces itself in the store. The lowest rank that is present waits until every other rank is
// present, lost (lost_key) or has finished, and puts the list. If that rank stops, the next one puts the list
// a second later. A rank that lives but does not come within rules.patience counts as lost. If it comes
// later, it gets Error(kInterrupted). If all living ranks come at once, the call takes milliseconds.
// Errors: CommError on every rank that is present if they are fewer than rules.majority asks for;
// TimeoutError if no list appears.
Membership agree_on_membership(Store& store, int rank, const Membership& before,
                               const MembershipRules& rules);

// Says that this rank has finished the run. The ranks that are left do not wait for it any more.
void leave_membership(Store& store, int rank);

// Removes what the groups and the agreements of a generation that is over have left in the store. Call it
// when all groups of a later generation exist.
void forget_generation(Store& store, int64_t generation);

}  // namespace starling
