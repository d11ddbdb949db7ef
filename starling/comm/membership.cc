#include "starling/comm/membership.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <set>
#include <sstream>
#include <string>

#include "starling/base/error.h"
#include "starling/comm/bootstrap.h"
#include "starling/net/deadline.h"
#include "starling/net/store/store_server.h"

namespace starling {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kRollLook{20};
constexpr int64_t kRarest = 250;         // the longest pause between two looks of a rank, times kRollLook
constexpr milliseconds kTurn{1'000};     // after this time the next rank that is present puts the list
constexpr milliseconds kWriting{5'000};  // time for putting the list, beyond all waits
constexpr const char* kRefused = "refused: ";

constexpr const char* kFinishedKeys = "membership/finished/";

std::string finished_key(int rank) {
  return fmt::format("{}{}", kFinishedKeys, rank);
}

std::string generation_key(int64_t generation, const std::string& what) {
  return fmt::format("membership/{}/{}", generation, what);
}

bool contains(const std::vector<int>& ranks, int rank) {
  return std::binary_search(ranks.begin(), ranks.end(), rank);
}

class Agreement {
 public:
  Agreement(Store& store, int rank, const Membership& before, const MembershipRules& rules)
      : store_(store),
        rank_(rank),
        before_(before),
        rules_(rules),
        generation_(before.generation + 1),
        turn_(deadline_in(milliseconds(0))),
        suspected_(deadline_in(rules.suspect_patience)) {}

  Membership run() {
    store_.put(key(fmt::format("here/{}", rank_)), "here");
    const milliseconds longest = rules_.patience + rules_.eviction + kWriting;
    const Deadline late = deadline_in(rules_.patience), end = deadline_in(longest);
    for (;;) {
      if (const auto list = await_list(has_passed(late) ? end : late)) return read(*list);
      look(has_passed(late));
      if (has_passed(end)) {
        throw TimeoutError(
            fmt::format("rank {}: the remaining ranks did not agree on generation {} within {} ms", rank_,
                        generation_, longest.count()));
      }
    }
  }

 private:
  std::string key(const std::string& what) const { return generation_key(generation_, what); }

  // Returns the ranks for which the store has a key that begins with `keys`.
  std::set<int> ranks_with(const std::string& keys) {
    std::set<int> ranks;
    for (const auto& [key, value] : store_.list(keys)) {
      const char* const number = key.c_str() + keys.size();
      if (*number >= '0' && *number <= '9') ranks.insert(std::atoi(number));
    }
    return ranks;
  }

  // A rank with a higher number polls less often, so that not all ranks ask the store at once.
  std::optional<std::string> await_list(Deadline until) {
    const std::vector<int>& ranks = present_.empty() ? before_.ranks : present_;
    const auto before = std::lower_bound(ranks.begin(), ranks.end(), rank_) - ranks.begin();
    const milliseconds pause = kRollLook * std::min<int64_t>(before + 1, kRarest);
    const auto left = std::chrono::ceil<milliseconds>(until - std::chrono::steady_clock::now());
    try {
      return store_.get(key("list"), std::clamp(left, kRollLook, std::max(pause, kRollLook)));
    } catch (const TimeoutError&) {
      return std::nullopt;
    }
  }

  // Counts the ranks that are present. Puts the list if this rank's turn has come, and if no rank is missing
  // or the wait for the missing ranks is over.
  void look(bool late) {
    std::vector<int> present, missing;
    const std::set<int> lost = ranks_with(kLostKeys), finished = ranks_with(kFinishedKeys),
                        here = ranks_with(key("here/"));
    for (const int r : before_.ranks) {
      if (lost.contains(r) || finished.contains(r)) continue;
      (here.contains(r) ? present : missing).push_back(r);
    }
    if (!contains(present, rank_)) return;  // the other ranks consider this rank lost
    late = late || (has_passed(suspected_) && missing == std::vector<int>{rules_.suspect});
    if (present != present_ || missing != missing_ || late != late_) {
      present_ = present;
      missing_ = missing;
      late_ = late;
      turn_ = deadline_in(kTurn * (std::find(present.begin(), present.end(), rank_) - present.begin()));
    }
    if (!has_passed(turn_)) return;
    if (!missing.empty() && (!late || awaits_evictions())) return;
    propose();
  }

  // Asks the launcher once to end the missing ranks. Returns whether the news of their death may still come.
  bool awaits_evictions() {
    if (!rules_.evict) return false;
    if (!evicted_by_) {
      evicted_by_ = deadline_in(rules_.eviction);
      for (const int r : missing_) rules_.evict(r, absence());
    }
    return !has_passed(*evicted_by_);
  }

  std::string absence() const {
    return fmt::format("it did not answer within {} ms", rules_.patience.count());
  }

  void propose() {
    std::vector<int> silent;  // neither present nor finished nor known to be dead
    const std::set<int> finished = ranks_with(kFinishedKeys), dead = ranks_with(kDeadKeys);
    for (const int r : before_.ranks) {
      if (!contains(present_, r) && !finished.contains(r) && !dead.contains(r)) silent.push_back(r);
    }
    if (rules_.majority && present_.size() < silent.size()) {
      store_.put_if_absent(key("list"),
                           fmt::format("{}of {} ranks, {} are present (rank {}). Rank {} may still run on "
                                       "the other side of a network fault. To "
                                       "continue with fewer than half of the ranks, give --quorum any",
                                       kRefused, present_.size() + silent.size(), present_.size(),
                                       fmt::join(present_, ", "), fmt::join(silent, ", ")));
      return;
    }
    const std::string mine = fmt::format("{}", fmt::join(present_, " "));
    if (store_.put_if_absent(key("list"), mine) != mine) return;
    // From now on the missing ranks are excluded. A missing rank that comes now finds the list.
    for (const int r : missing_) store_.put_if_absent(lost_key(r), absence());
  }

  Membership read(const std::string& list) const {
    if (list.starts_with(kRefused)) throw CommError(list.substr(std::string(kRefused).size()));
    Membership membership{generation_, {}};
    std::istringstream text(list);
    for (int rank; text >> rank;) membership.ranks.push_back(rank);
    if (contains(membership.ranks, rank_)) return membership;
    throw Error(ErrorCode::kInterrupted,
                fmt::format("rank {}: the other ranks continued without it: {}", rank_,
                            store_.try_get(lost_key(rank_)).value_or(absence())),
                rank_);
  }

  Store& store_;
  const int rank_;
  const Membership& before_;
  const MembershipRules& rules_;
  const int64_t generation_;
  std::vector<int> present_, missing_;  // when they were last counted
  bool late_ = false;                   // whether the patience was over then
  Deadline turn_;                       // when this rank may put the list that follows from them
  const Deadline suspected_;            // when the patience with rules_.suspect ends
  std::optional<Deadline> evicted_by_;
};

}  // namespace

Membership full_membership(int ranks) {
  Membership membership;
  membership.ranks.resize(static_cast<size_t>(ranks));
  std::iota(membership.ranks.begin(), membership.ranks.end(), 0);
  return membership;
}

void leave_membership(Store& store, int rank) {
  store.put(finished_key(rank), "yes");
}

Membership agree_on_membership(Store& store, int rank, const Membership& before,
                               const MembershipRules& rules) {
  return Agreement(store, rank, before, rules).run();
}

void forget_generation(Store& store, int64_t generation) {
  store.erase(group_keys(generation));
  store.erase(generation_key(generation, "here/"));  // the list stays, for ranks that come late
}

}  // namespace starling
