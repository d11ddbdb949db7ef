#include "starling/place/simulate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <queue>
#include <utility>

#include "starling/base/check.h"
#include "starling/base/error.h"

namespace starling {
namespace {

// One simulation. Task i · n + g is the forward of group g and micro-batch i. Task m · n + i · n + (n − 1 −
// g) is its backward. A lower number is executed first, as far as it is ready.
class StepRun {
 public:
  StepRun(const StepSimulator& simulator, const Placement& placement)
      : graph_(simulator.graph()),
        topology_(simulator.topology()),
        consumers_(simulator.consumers()),
        placement_(placement),
        n_(static_cast<int>(graph_.groups.size())),
        m_(simulator.micro_batches()),
        devices_(topology_.size()),
        forwards_(n_ * m_),
        waits_for_(2 * static_cast<size_t>(forwards_), 0),
        gradients_left_(static_cast<size_t>(forwards_) * static_cast<size_t>(devices_), 0),
        state_(static_cast<size_t>(devices_)),
        link_free_(static_cast<size_t>(devices_ * devices_), 0) {}

  StepEstimate run() {
    count_inputs();
    dispatch(0);
    while (!events_.empty()) {
      const double now = events_.top().time;
      while (!events_.empty() && events_.top().time == now) {
        const Event event = events_.top();
        events_.pop();
        if (event.device >= 0)
          finish(event.device, event.task, now);
        else
          satisfy(event.task);
      }
      dispatch(now);
    }
    return estimate();
  }

 private:
  // The end of a task on a device, or (device −1) the arrival of a message that `task` waits for.
  struct Event {
    double time = 0;
    int64_t number = 0;  // events of equal times are handled in the order of their making
    int device = -1;
    int task = 0;
    bool operator>(const Event& other) const {
      return time != other.time ? time > other.time : number > other.number;
    }
  };
  struct DeviceState {
    std::priority_queue<int, std::vector<int>, std::greater<>> ready;
    int forwards_left = 0, tasks_left = 0;
    bool busy = false;
    double busy_s = 0, end = 0, update_s = 0;
  };

  bool is_forward(int task) const { return task < forwards_; }
  int forward_of(int group, int batch) const { return batch * n_ + group; }
  int backward_of(int group, int batch) const { return forwards_ + batch * n_ + (n_ - 1 - group); }
  int group_of(int task) const { return is_forward(task) ? task % n_ : n_ - 1 - task % n_; }
  int batch_of(int task) const { return task % forwards_ / n_; }
  DeviceState& state_of(int device) { return state_[static_cast<size_t>(device)]; }
  const OperationGroup& group(int index) const { return graph_.groups[static_cast<size_t>(index)]; }
  int device_of(int index) const { return placement_[static_cast<size_t>(index)]; }
  int& gradients_left(int index, int device, int batch) {
    const auto cell =
        static_cast<size_t>(index) * static_cast<size_t>(devices_) + static_cast<size_t>(device);
    return gradients_left_[cell * static_cast<size_t>(m_) + static_cast<size_t>(batch)];
  }

  // Counts what each task waits for. A backward waits for one gradient from each device that has consumers,
  // and for its own forward.
  void count_inputs() {
    for (int g = 0; g < n_; ++g) {
      DeviceState& own = state_of(device_of(g));
      own.forwards_left += m_;
      own.tasks_left += 2 * m_;
      own.update_s += group(g).update_s / topology_.devices[static_cast<size_t>(device_of(g))].speed;
      for (int i = 0; i < m_; ++i) {
        waits_for_[static_cast<size_t>(forward_of(g, i))] = static_cast<int>(group(g).inputs.size());
        int& gradients = waits_for_[static_cast<size_t>(backward_of(g, i))];
        gradients = 1;
        for (const int consumer : consumers_[static_cast<size_t>(g)]) {
          if (gradients_left(g, device_of(consumer), i)++ == 0) ++gradients;
        }
        if (group(g).inputs.empty()) own.ready.push(forward_of(g, i));
      }
    }
  }

  void satisfy(int task) {
    if (--waits_for_[static_cast<size_t>(task)] == 0) state_of(device_of(group_of(task))).ready.push(task);
  }

  // Sends a message, whose arrival satisfies the tasks.
  void send(int from, int to, double bytes, double now, const std::vector<int>& tasks) {
    const DeviceLink& link = topology_.links[static_cast<size_t>(from)][static_cast<size_t>(to)];
    double& free =
        link_free_[static_cast<size_t>(from) * static_cast<size_t>(devices_) + static_cast<size_t>(to)];
    free = std::max(free, now) + link.occupied_s(bytes);
    for (const int task : tasks) events_.push({free + link.latency_s, ++made_, -1, task});
  }

  void finish(int device, int task, double now) {
    DeviceState& state = state_of(device);
    state.busy = false;
    state.end = now;
    --state.tasks_left;
    const int g = group_of(task), i = batch_of(task);
    if (!is_forward(task)) return return_gradients(device, g, i, now);
    --state.forwards_left;
    satisfy(backward_of(g, i));
    for (int to = 0; to < devices_; ++to) {
      std::vector<int> waiting;
      for (const int consumer : consumers_[static_cast<size_t>(g)])
        if (device_of(consumer) == to) waiting.push_back(forward_of(consumer, i));
      if (to == device) {
        for (const int other : waiting) satisfy(other);
      } else if (!waiting.empty()) {
        send(device, to, group(g).output_bytes, now, waiting);
      }
    }
  }

  void return_gradients(int device, int g, int i, double now) {
    for (const int input : group(g).inputs) {
      if (--gradients_left(input, device, i) > 0) continue;
      if (device_of(input) == device)
        satisfy(backward_of(input, i));
      else
        send(device, device_of(input), group(input).output_bytes, now, {backward_of(input, i)});
    }
  }

  // Starts what idle devices can execute.
  void dispatch(double now) {
    for (int d = 0; d < devices_; ++d) {
      DeviceState& state = state_of(d);
      if (state.busy || state.ready.empty()) continue;
      const int task = state.ready.top();
      if (!is_forward(task) && state.forwards_left > 0) continue;
      state.ready.pop();
      const OperationGroup& own = group(group_of(task));
      const double seconds = (is_forward(task) ? own.forward_s : own.backward_s) /
                             topology_.devices[static_cast<size_t>(d)].speed;
      state.busy = true;
      state.busy_s += seconds;
      events_.push({now + seconds, ++made_, d, task});
    }
  }

  StepEstimate estimate() {
    StepEstimate result;
    for (int d = 0; d < devices_; ++d) {
      const DeviceState& state = state_of(d);
      STARLING_CHECK(state.tasks_left == 0, "device {} has {} tasks that never became ready", d,
                     state.tasks_left);
      result.seconds = std::max(result.seconds, state.end + state.update_s);
      result.busy_s.push_back(state.busy_s + state.update_s);
      const double memory = memory_of(d), limit = topology_.devices[static_cast<size_t>(d)].memory_bytes;
      result.memory_bytes.push_back(memory);
      result.overflow = std::max(result.overflow, memory / limit - 1);
    }
    return result;
  }

  double memory_of(int device) const {
    double bytes = 0;
    for (int g = 0; g < n_; ++g) {
      if (device_of(g) == device) {
        bytes += group(g).state_bytes + m_ * group(g).kept_bytes;
        continue;
      }
      const auto& takers = consumers_[static_cast<size_t>(g)];
      const bool receives =
          std::any_of(takers.begin(), takers.end(), [&](int c) { return device_of(c) == device; });
      if (receives) bytes += m_ * group(g).output_bytes;
    }
    return bytes;
  }

  const PlacementGraph& graph_;
  const DeviceTopology& topology_;
  const std::vector<std::vector<int>>& consumers_;
  const Placement& placement_;
  const int n_, m_, devices_, forwards_;
  std::vector<int> waits_for_;       // by task: inputs or gradients that are missing
  std::vector<int> gradients_left_;  // by group, device and micro-batch: backwards that a gradient waits for
  std::vector<DeviceState> state_;
  std::vector<double> link_free_;  // when each link can take the next message
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  int64_t made_ = 0;
};

}  // namespace

StepSimulator::StepSimulator(PlacementGraph graph, DeviceTopology topology, int micro_batches)
    : graph_(std::move(graph)),
      topology_(std::move(topology)),
      micro_batches_(micro_batches),
      consumers_(graph_.groups.size()) {
  check_graph(graph_, "graph");
  check_topology(topology_, "devices");
  if (micro_batches < 1)
    throw ConfigError("--micro-batches", fmt::format("is {}, but must be at least 1", micro_batches));
  if (graph_.groups.size() > kMostPasses / static_cast<size_t>(micro_batches))
    throw ConfigError(
        "--micro-batches",
        fmt::format("{} groups and {} micro-batches are too many to simulate; their product may "
                    "be {}",
                    graph_.groups.size(), micro_batches, kMostPasses));
  double slowest = topology_.devices.front().speed, bytes_per_s = 0, latency_s = 0;
  for (const PlacementDevice& device : topology_.devices) slowest = std::min(slowest, device.speed);
  for (const auto& row : topology_.links) {
    for (const DeviceLink& link : row) {
      bytes_per_s = bytes_per_s == 0 ? link.bytes_per_s : std::min(bytes_per_s, link.bytes_per_s);
      latency_s = std::max(latency_s, link.latency_s);
    }
  }
  for (size_t g = 0; g < graph_.groups.size(); ++g) {
    const OperationGroup& group = graph_.groups[g];
    for (const int input : group.inputs)
      consumers_[static_cast<size_t>(input)].push_back(static_cast<int>(g));
    const double computes = micro_batches * (group.forward_s + group.backward_s) + group.update_s;
    const double messages = 2.0 * micro_batches * topology_.size();
    longest_s_ += computes / slowest + messages * (latency_s + group.output_bytes / bytes_per_s);
  }
  if (!std::isfinite(longest_s_))
    throw ConfigError("graph", "a step takes no finite time; use larger speeds or bandwidths");
}

StepEstimate StepSimulator::run(const Placement& placement) const {
  if (placement.size() != graph_.groups.size())
    throw ConfigError("placement", fmt::format("has {} devices for {} groups; name one for each group",
                                               placement.size(), graph_.groups.size()));
  for (const int device : placement) {
    if (device < 0 || device >= topology_.size())
      throw ConfigError("placement", fmt::format("names device {}, but the last of {} devices is {}", device,
                                                 topology_.size(), topology_.size() - 1));
  }
  return StepRun(*this, placement).run();
}

double StepSimulator::cost_of(const StepEstimate& estimate) const {
  return estimate.fits() ? estimate.seconds : longest_s_ * (1 + estimate.overflow);
}

}  // namespace starling
