#include "starling/plan/pipeline_schedule.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

#include "starling/base/error.h"
#include "starling/base/suggest.h"

namespace starling {
namespace {

// One forward or backward.
struct Unit {
  int micro_batch;
  int chunk;
};

// Adds forwards and backwards with their messages: each receive directly before, each send directly after.
class Table {
 public:
  Table(const Schedule& schedule, int rank) : schedule_(schedule), rank_(rank) {}

  void forward(Unit u) {
    if (!first(u)) add(ActionKind::kRecvActivation, u);
    add(ActionKind::kForward, u);
    if (!last(u)) add(ActionKind::kSendActivation, u);
  }
  void backward(Unit u) {
    if (!last(u)) add(ActionKind::kRecvGradient, u);
    add(ActionKind::kBackward, u);
    if (!first(u)) add(ActionKind::kSendGradient, u);
  }
  std::vector<Action> take() { return std::move(actions_); }

 private:
  bool first(Unit u) const { return schedule_.ranks == 1 || schedule_.stage_of(rank_, u.chunk) == 0; }
  bool last(Unit u) const {
    return schedule_.ranks == 1 || schedule_.stage_of(rank_, u.chunk) == schedule_.stages() - 1;
  }
  void add(ActionKind kind, Unit u) {
    Action action;
    action.kind = kind;
    action.micro_batch = u.micro_batch;
    action.chunk = u.chunk;
    actions_.push_back(action);
  }

  const Schedule& schedule_;
  int rank_;
  std::vector<Action> actions_;
};

// Interleaved: returns where each group of micro-batches begins, followed by the number of micro-batches. A
// group has `ranks` micro-batches, as in Megatron. If that leaves a remainder, there are fewer groups of
// nearly equal size, the larger ones first. Groups smaller than `ranks` would deadlock.
std::vector<int> groups_of(const Schedule& s) {
  const int groups = std::max(1, s.micro_batches / s.ranks);
  std::vector<int> begins;
  for (int g = 0; g <= groups; ++g) {
    begins.push_back(g * (s.micro_batches / groups) + std::min(g, s.micro_batches % groups));
  }
  return begins;
}

// Returns the order in which a rank goes forward: each group of micro-batches passes through all chunks.
// Backward visits the groups in the same order and the chunks in reverse order.
std::vector<Unit> order_of(const Schedule& s, bool backward) {
  const std::vector<int> groups = groups_of(s);
  std::vector<Unit> order;
  for (size_t g = 0; g + 1 < groups.size(); ++g) {
    for (int c = 0; c < s.chunks; ++c) {
      for (int m = groups[g]; m < groups[g + 1]; ++m) order.push_back({m, backward ? s.chunks - 1 - c : c});
    }
  }
  return order;
}

// Returns `warm_up` forwards, then forward and backward alternately, then all remaining backwards.
std::vector<Action> alternating(const Schedule& s, int rank, size_t warm_up) {
  const std::vector<Unit> forward = order_of(s, false), backward = order_of(s, true);
  warm_up = std::min(warm_up, forward.size());
  Table table(s, rank);
  for (size_t i = 0; i < warm_up; ++i) table.forward(forward[i]);
  for (size_t i = warm_up; i < forward.size(); ++i) {
    table.forward(forward[i]);
    table.backward(backward[i - warm_up]);
  }
  for (size_t i = forward.size() - warm_up; i < backward.size(); ++i) table.backward(backward[i]);
  return table.take();
}

std::vector<Action> one_by_one(const Schedule& s, int rank) {
  Table table(s, rank);
  for (int m = 0; m < s.micro_batches; ++m) {
    table.forward({m, 0});
    table.backward({m, 0});
  }
  return table.take();
}

// Backward visits the micro-batches in the order of forward.
std::vector<Action> all_then_all(const Schedule& s, int rank) {
  Table table(s, rank);
  for (int m = 0; m < s.micro_batches; ++m) table.forward({m, 0});
  for (int m = 0; m < s.micro_batches; ++m) table.backward({m, 0});
  return table.take();
}

std::vector<Action> actions_of(const Schedule& s, int rank) {
  if (s.name == "naive") return one_by_one(s, rank);
  if (s.name == "gpipe") return all_then_all(s, rank);
  const int behind = s.ranks - 1 - rank;
  if (s.chunks == 1) return alternating(s, rank, behind);
  const int largest_group = groups_of(s)[1];
  return alternating(s, rank, 2 * behind + (s.chunks - 1) * largest_group);
}

void check_numbers(std::string_view name, int ranks, int chunks, int micro_batches) {
  const std::vector<std::string>& names = schedule_names();
  if (std::find(names.begin(), names.end(), name) == names.end()) {
    const std::string near = nearest(std::string(name), names);
    throw ConfigError(
        "--schedule",
        fmt::format("unknown schedule \"{}\"{}; use one of {} or the path of a schedule file", name,
                    near.empty() ? "" : "; did you mean \"" + near + "\"?", fmt::join(names, " ")));
  }
  if (ranks < 1) throw ConfigError("--mesh", fmt::format("stage={}, but must be at least 1", ranks));
  if (micro_batches < 1)
    throw ConfigError("--micro-batches", fmt::format("is {}, but must be at least 1", micro_batches));
  if (chunks < 1 || (chunks > 1 && name != "interleaved")) {
    throw ConfigError("--chunks", fmt::format("is {}; {}", chunks,
                                              chunks < 1 ? "must be at least 1"
                                                         : "only --schedule interleaved accepts more than "
                                                           "one chunk per rank"));
  }
}

}  // namespace

std::string_view name_of(ActionKind kind) {
  static constexpr std::array<std::string_view, 6> kNames = {
      "forward", "backward", "send-activation", "recv-activation", "send-gradient", "recv-gradient"};
  return kNames[static_cast<size_t>(kind)];
}

std::string_view code_of(ActionKind kind) {
  static constexpr std::array<std::string_view, 6> kCodes = {"F", "B", "SA", "RA", "SG", "RG"};
  return kCodes[static_cast<size_t>(kind)];
}

std::string describe(const Action& action, int chunks) {
  std::string text = fmt::format("{} of micro-batch {}", name_of(action.kind), action.micro_batch);
  if (chunks > 1) text += fmt::format(", chunk {}", action.chunk);
  return text;
}

const std::vector<std::string>& schedule_names() {
  static const std::vector<std::string> names = {"naive", "gpipe", "1f1b", "interleaved"};
  return names;
}

Schedule make_schedule(std::string_view name, int ranks, int chunks, int micro_batches) {
  check_numbers(name, ranks, chunks, micro_batches);
  Schedule schedule;
  schedule.name = name;
  schedule.ranks = ranks;
  schedule.chunks = chunks;
  schedule.micro_batches = micro_batches;
  for (int r = 0; r < ranks; ++r) schedule.actions.push_back(actions_of(schedule, r));
  return schedule;
}

double planned_bubble(std::string_view name, int ranks, int chunks, int micro_batches) {
  const double fill = ranks - 1;
  if (name == "naive") return fill / ranks;
  if (name == "gpipe" || name == "1f1b") return fill / (micro_batches + fill);
  if (name == "interleaved") return fill / (static_cast<double>(chunks) * micro_batches + fill);
  return -1;
}

}  // namespace starling
