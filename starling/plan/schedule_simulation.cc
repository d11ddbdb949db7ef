#include "starling/plan/schedule_simulation.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "starling/base/check.h"
#include "starling/plan/schedule_check.h"

namespace starling {
namespace {

double cost_of(const std::vector<double>& by_stage, int stage) {
  return by_stage.size() == 1 ? by_stage[0] : by_stage.at(stage);
}

class Simulation {
 public:
  Simulation(const Schedule& schedule, const ScheduleCosts& costs)
      : s_(schedule), costs_(costs), at_(schedule.ranks), now_(schedule.ranks), timeline_(schedule.ranks) {}

  SimulatedStep run() {
    bool moved = true;
    while (moved) {
      moved = false;
      for (int r = 0; r < s_.ranks; ++r) {
        while (at_[r] < s_.actions[r].size() && advance(r, s_.actions[r][at_[r]])) {
          ++at_[r];
          moved = true;
        }
      }
    }
    SimulatedStep step;
    for (int r = 0; r < s_.ranks; ++r) {
      STARLING_CHECK(at_[r] == s_.actions[r].size(), "rank {} is blocked: the schedule was not checked", r);
      step.makespan = std::max(step.makespan, now_[r]);
      step.timeline.insert(step.timeline.end(), timeline_[r].begin(), timeline_[r].end());
    }
    step.bubble = step.makespan > 0 ? 1 - busy_ / (s_.ranks * step.makespan) : 0;
    return step;
  }

 private:
  using Key = std::tuple<int, ActionKind, int, int>;

  bool advance(int rank, const Action& a) {
    double end = now_[rank];
    switch (a.kind) {
      case ActionKind::kForward:
      case ActionKind::kBackward: {
        const auto& by_stage = a.kind == ActionKind::kForward ? costs_.forward : costs_.backward;
        const double cost = cost_of(by_stage, s_.stage_of(rank, a.chunk));
        busy_ += cost;
        end += cost;
        break;
      }
      case ActionKind::kSendActivation:
      case ActionKind::kSendGradient:
        sent_[{rank, a.kind, a.micro_batch, a.chunk}] = end;
        break;
      case ActionKind::kRecvActivation:
      case ActionKind::kRecvGradient: {
        const Counterpart from = counterpart_of(s_, rank, a);
        const auto it = sent_.find({from.rank, from.action.kind, from.action.micro_batch, from.action.chunk});
        if (it == sent_.end()) return false;
        end = std::max(end, it->second + costs_.message);
        break;
      }
    }
    timeline_[rank].push_back({rank, a, now_[rank], end});
    now_[rank] = end;
    return true;
  }

  const Schedule& s_;
  const ScheduleCosts& costs_;
  std::vector<size_t> at_;
  std::vector<double> now_;
  std::vector<std::vector<TimedAction>> timeline_;
  std::map<Key, double> sent_;
  double busy_ = 0;
};

}  // namespace

SimulatedStep simulate_schedule(const Schedule& schedule, const ScheduleCosts& costs) {
  return Simulation(schedule, costs).run();
}

}  // namespace starling
