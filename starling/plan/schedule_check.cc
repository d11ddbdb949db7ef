#include "starling/plan/schedule_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "starling/base/check.h"
#include "starling/base/error.h"

namespace starling {
namespace {

// The key of an action of a rank: rank, kind, micro-batch and chunk.
using Key = std::tuple<int, ActionKind, int, int>;
Key key_of(int rank, const Action& a) {
  return {rank, a.kind, a.micro_batch, a.chunk};
}

bool is_send(ActionKind kind) {
  return kind == ActionKind::kSendActivation || kind == ActionKind::kSendGradient;
}
bool is_recv(ActionKind kind) {
  return kind == ActionKind::kRecvActivation || kind == ActionKind::kRecvGradient;
}

std::string where(const Schedule& s, const Action* action = nullptr) {
  if (s.source.empty()) return "schedule " + s.name;
  if (action == nullptr || action->line == 0) return s.source;
  return fmt::format("{}:{}:{}", s.source, action->line, action->column);
}

class Checker {
 public:
  Checker(const Schedule& schedule, Delivery delivery) : s_(schedule), delivery_(delivery) {}

  ScheduleFacts check() {
    if (static_cast<int>(s_.actions.size()) != s_.ranks) {
      throw ConfigError(where(s_), fmt::format("the schedule lists actions of {} ranks, but `ranks` is {}",
                                               s_.actions.size(), s_.ranks));
    }
    for (int r = 0; r < s_.ranks; ++r) check_rank(r);
    execute();
    return facts_;
  }

 private:
  std::string text(const Action& a) const { return describe(a, s_.chunks); }

  bool first(int rank, int chunk) const { return s_.stage_of(rank, chunk) == 0; }
  bool last(int rank, int chunk) const { return s_.stage_of(rank, chunk) == s_.stages() - 1; }

  bool belongs(int rank, const Action& a) const {
    if (a.kind == ActionKind::kForward || a.kind == ActionKind::kBackward) return true;
    if (s_.ranks == 1) return false;
    const bool backward_side = a.kind == ActionKind::kRecvActivation || a.kind == ActionKind::kSendGradient;
    return backward_side ? !first(rank, a.chunk) : !last(rank, a.chunk);
  }

  void check_numbers(int rank, const Action& a) const {
    if (a.micro_batch < 0 || a.micro_batch >= s_.micro_batches || a.chunk < 0 || a.chunk >= s_.chunks) {
      throw ConfigError(where(s_, &a),
                        fmt::format("rank {}: {} does not exist: the schedule has micro-batches 0 … {} "
                                    "and chunks 0 … {}",
                                    rank, describe(a, 2), s_.micro_batches - 1, s_.chunks - 1));
    }
    if (!belongs(rank, a)) {
      throw ConfigError(where(s_, &a),
                        fmt::format("rank {} has no peer for its {}: stage {} is {}", rank, text(a),
                                    s_.stage_of(rank, a.chunk),
                                    s_.ranks == 1 ? "on the same rank as its neighbors"
                                                  : (first(rank, a.chunk) ? "the first" : "the last")));
    }
  }

  // Returns the actions of the same rank that must come before `a`.
  std::vector<Action> needs(int rank, const Action& a) const {
    Action need = a;
    std::vector<Action> all;
    const auto add = [&](ActionKind kind, int chunk) {
      need.kind = kind;
      need.chunk = chunk;
      all.push_back(need);
    };
    switch (a.kind) {
      case ActionKind::kForward:
        if (s_.ranks == 1 && a.chunk > 0) add(ActionKind::kForward, a.chunk - 1);
        if (s_.ranks > 1 && !first(rank, a.chunk)) add(ActionKind::kRecvActivation, a.chunk);
        break;
      case ActionKind::kBackward:
        add(ActionKind::kForward, a.chunk);
        if (s_.ranks == 1 && a.chunk + 1 < s_.chunks) add(ActionKind::kBackward, a.chunk + 1);
        if (s_.ranks > 1 && !last(rank, a.chunk)) add(ActionKind::kRecvGradient, a.chunk);
        break;
      case ActionKind::kSendActivation:
        add(ActionKind::kForward, a.chunk);
        break;
      case ActionKind::kSendGradient:
        add(ActionKind::kBackward, a.chunk);
        break;
      default:
        break;
    }
    return all;
  }

  void check_rank(int rank) {
    std::set<Key> done;
    int live = 0, most = 0;
    for (const Action& a : s_.actions[rank]) {
      check_numbers(rank, a);
      if (done.count(key_of(rank, a)) > 0)
        throw ConfigError(where(s_, &a), fmt::format("rank {}: {} occurs twice", rank, text(a)));
      for (const Action& need : needs(rank, a)) {
        if (done.count(key_of(rank, need)) == 0) {
          throw ConfigError(where(s_, &a),
                            fmt::format("rank {}: {} must come after {}", rank, text(a), text(need)));
        }
      }
      done.insert(key_of(rank, a));
      if (a.kind == ActionKind::kForward) most = std::max(most, ++live);
      if (a.kind == ActionKind::kBackward) --live;
      if (is_send(a.kind)) ++facts_.messages;
    }
    check_complete(rank, done);
    facts_.live.push_back(most);
  }

  void check_complete(int rank, const std::set<Key>& done) const {
    for (int m = 0; m < s_.micro_batches; ++m) {
      for (int c = 0; c < s_.chunks; ++c) {
        for (int k = 0; k < 6; ++k) {
          Action a;
          a.kind = static_cast<ActionKind>(k);
          a.micro_batch = m;
          a.chunk = c;
          if (belongs(rank, a) && done.count(key_of(rank, a)) == 0)
            throw ConfigError(where(s_), fmt::format("rank {} has no {}", rank, text(a)));
        }
      }
    }
  }

  const Action* current(int rank) const {
    return at_[rank] < s_.actions[rank].size() ? &s_.actions[rank][at_[rank]] : nullptr;
  }

  // Returns whether the current action of `rank` can be executed now.
  bool ready(int rank) const {
    const Action& a = *current(rank);
    const bool rendezvous = delivery_ == Delivery::kRendezvous;
    if (!is_recv(a.kind) && !(rendezvous && is_send(a.kind))) return true;
    const Counterpart other = counterpart_of(s_, rank, a);
    if (done_.count(key_of(other.rank, other.action)) > 0) return true;
    const Action* theirs = current(other.rank);
    return rendezvous && theirs != nullptr && *theirs == other.action;
  }

  void execute() {
    at_.assign(s_.ranks, 0);
    bool moved = true;
    while (moved) {
      moved = false;
      for (int r = 0; r < s_.ranks; ++r) {
        while (current(r) != nullptr && ready(r)) {
          done_.insert(key_of(r, *current(r)));
          ++at_[r];
          moved = true;
        }
      }
    }
    for (int r = 0; r < s_.ranks; ++r) {
      if (current(r) != nullptr) refuse_deadlock(r);
    }
  }

  // Every blocked rank waits for another blocked rank, so following these ranks ends in a cycle.
  [[noreturn]] void refuse_deadlock(int rank) const {
    std::vector<int> chain;
    while (std::find(chain.begin(), chain.end(), rank) == chain.end()) {
      chain.push_back(rank);
      rank = counterpart_of(s_, rank, *current(rank)).rank;
    }
    chain.erase(chain.begin(), std::find(chain.begin(), chain.end(), rank));
    std::vector<std::string> lines;
    for (int r : chain) {
      const Action& a = *current(r);
      const Counterpart other = counterpart_of(s_, r, a);
      const auto& theirs = s_.actions[other.rank];
      const auto it = std::find(theirs.begin(), theirs.end(), other.action);
      STARLING_CHECK(it != theirs.end(), "rank {}: {}", other.rank, text(other.action));
      lines.push_back(fmt::format("rank {} at {} ({}) waits for rank {}'s {} ({}), which comes after its {}",
                                  r, text(a), place(r, a), other.rank, text(other.action),
                                  place(other.rank, *it), text(*current(other.rank))));
    }
    throw ConfigError(where(s_, current(chain.front())), fmt::format("deadlock: {}", fmt::join(lines, "; ")));
  }

  // Returns "line 7", or "its action 12" for a built-in schedule.
  std::string place(int rank, const Action& a) const {
    if (a.line > 0) return fmt::format("line {}", a.line);
    const auto& all = s_.actions[rank];
    return fmt::format("its action {}", std::find(all.begin(), all.end(), a) - all.begin() + 1);
  }

  const Schedule& s_;
  const Delivery delivery_;
  ScheduleFacts facts_;
  std::vector<size_t> at_;  // by rank: the index of its current action
  std::set<Key> done_;
};

}  // namespace

Counterpart counterpart_of(const Schedule& s, int rank, const Action& action) {
  Counterpart other{rank, action};
  other.action.line = other.action.column = 0;
  int stage = s.stage_of(rank, action.chunk);
  switch (action.kind) {
    case ActionKind::kSendActivation:
      other.action.kind = ActionKind::kRecvActivation;
      ++stage;
      break;
    case ActionKind::kRecvActivation:
      other.action.kind = ActionKind::kSendActivation;
      --stage;
      break;
    case ActionKind::kSendGradient:
      other.action.kind = ActionKind::kRecvGradient;
      --stage;
      break;
    case ActionKind::kRecvGradient:
      other.action.kind = ActionKind::kSendGradient;
      ++stage;
      break;
    default:
      break;
  }
  STARLING_CHECK(stage >= 0 && stage < s.stages(), "stage {}", stage);
  other.rank = s.rank_of(stage);
  other.action.chunk = s.chunk_of(stage);
  return other;
}

ScheduleFacts check_schedule(const Schedule& schedule, Delivery delivery) {
  return Checker(schedule, delivery).check();
}

}  // namespace starling
