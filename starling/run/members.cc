#include "starling/run/members.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <sstream>
#include <string>

#include "starling/base/error.h"
#include "starling/net/deadline.h"
#include "starling/net/store_server.h"

namespace starling {
namespace {

using std::chrono::milliseconds;

std::string finished_key(int rank) {
  return fmt::format("members/finished/{}", rank);
}

constexpr milliseconds kLook{20};
constexpr milliseconds kWriting{5'000};  // beyond the patience: for the list to be written

class RollCall {
 public:
  RollCall(Store& store, int rank, const Members& before, milliseconds patience)
      : store_(store),
        rank_(rank),
        before_(before),
        patience_(patience),
        generation_(before.generation + 1) {}

  Members run() {
    store_.put(key(fmt::format("here/{}", rank_)), "here");
    const Deadline come = deadline_in(patience_), end = deadline_in(patience_ + kWriting);
    for (;;) {
      if (const auto list = await_list()) return read(*list);
      propose(has_passed(come));
      if (has_passed(end)) {
        throw TimeoutError(
            fmt::format("rank {}: the ranks that are left did not agree on generation {} within {} ms", rank_,
                        generation_, (patience_ + kWriting).count()));
      }
    }
  }

 private:
  std::string key(const std::string& what) const { return fmt::format("members/{}/{}", generation_, what); }
  bool is_here(int rank) { return store_.try_get(key(fmt::format("here/{}", rank))).has_value(); }

  std::optional<std::string> await_list() {
    try {
      return store_.get(key("list"), kLook);
    } catch (const TimeoutError&) {
      return std::nullopt;
    }
  }

  // Writes the list, if that is for this rank to do and everybody is here or lost.
  void propose(bool late) {
    std::vector<int> left;
    for (const int r : before_.ranks) {
      if (!store_.try_get(lost_key(r)) && !store_.try_get(finished_key(r))) left.push_back(r);
    }
    if (left.empty() || left.front() != rank_) return;
    std::vector<int> here;
    for (const int r : left) {
      if (is_here(r)) {
        here.push_back(r);
      } else if (!late) {
        return;
      } else {
        store_.put(lost_key(r), fmt::format("it did not answer within {} ms", patience_.count()));
      }
    }
    store_.put(key("list"), fmt::format("{}", fmt::join(here, " ")));
  }

  Members read(const std::string& list) const {
    Members members{generation_, {}};
    std::istringstream text(list);
    for (int rank; text >> rank;) members.ranks.push_back(rank);
    if (std::binary_search(members.ranks.begin(), members.ranks.end(), rank_)) return members;
    throw Error(ErrorCode::kInterrupted,
                fmt::format("rank {} did not answer within {} ms, and the others went on without it", rank_,
                            patience_.count()),
                rank_);
  }

  Store& store_;
  const int rank_;
  const Members& before_;
  const milliseconds patience_;
  const int64_t generation_;
};

}  // namespace

Members all_members(int ranks) {
  Members members;
  members.ranks.resize(static_cast<size_t>(ranks));
  std::iota(members.ranks.begin(), members.ranks.end(), 0);
  return members;
}

void leave_members(Store& store, int rank) {
  store.put(finished_key(rank), "yes");
}

Members agree_on_members(Store& store, int rank, const Members& before, milliseconds patience) {
  return RollCall(store, rank, before, patience).run();
}

}  // namespace starling
