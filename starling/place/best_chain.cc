#include "starling/place/best_chain.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "starling/base/error.h"

namespace starling {
namespace {

// The stages from some group to the end of the chain.
struct Suffix {
  double forward_sum = 0, forward_max = 0;
  double backward_sum = 0, backward_max = 0;
  double last_update = 0;  // when the last of these stages has updated, counted from the end of all forwards
  // The stage behind the first one: where its label is.
  size_t next_begin = 0;
  int next_device = -1;
  size_t next_label = 0;

  bool dominates(const Suffix& o) const {
    return forward_sum <= o.forward_sum && forward_max <= o.forward_max && backward_sum <= o.backward_sum &&
           backward_max <= o.backward_max && last_update <= o.last_update;
  }
  double seconds(int micro_batches) const {
    return forward_sum + (micro_batches - 1) * forward_max + last_update;
  }
};

using Labels = std::vector<Suffix>;

// The sums of the consecutive groups of a stage, on a device of speed 1.
struct StageSums {
  double forward = 0, backward = 0, update = 0, memory = 0;
};

// Returns how many pairs of a stage and the devices behind it a search has. A double, as it may be large.
double pairs_of(size_t groups, int devices) {
  const auto n = static_cast<double>(groups), d = static_cast<double>(devices);
  return n * (n + 1) / 2 * d * std::exp2(d - 1) * d;
}

class ChainSearch {
 public:
  ChainSearch(const StepSimulator& simulator, int64_t most)
      : graph_(simulator.graph()),
        topology_(simulator.topology()),
        m_(simulator.micro_batches()),
        n_(graph_.groups.size()),
        devices_(topology_.size()),
        masks_(size_t{1} << devices_),
        left_(most),
        labels_((n_ + 1) * masks_ * static_cast<size_t>(devices_)) {}

  std::optional<ChainPlacement> run() {
    for (size_t begin = n_; begin-- > 0;) {
      StageSums sums;
      sums.memory = begin > 0 ? m_ * graph_.groups[begin - 1].output_bytes : 0;
      for (size_t end = begin + 1; end <= n_; ++end) {
        const OperationGroup& group = graph_.groups[end - 1];
        sums.forward += group.forward_s;
        sums.backward += group.backward_s;
        sums.update += group.update_s;
        sums.memory += group.state_bytes + m_ * group.kept_bytes;
        for (int device = 0; device < devices_; ++device) put_stage(begin, end, sums, device);
        if (left_ < 0) return {};
      }
    }
    return best();
  }

 private:
  Labels& labels(size_t begin, size_t mask, int device) {
    return labels_[(begin * masks_ + mask) * static_cast<size_t>(devices_) + static_cast<size_t>(device)];
  }

  // Puts the stage of the groups [begin, end) before every suffix that begins at `end`.
  void put_stage(size_t begin, size_t end, const StageSums& sums, int device) {
    const PlacementDevice& own = topology_.devices[static_cast<size_t>(device)];
    if (sums.memory > own.memory_bytes) return;
    const double forward = sums.forward / own.speed, backward = sums.backward / own.speed;
    const Suffix stage{forward, forward, backward, backward, sums.update / own.speed};
    const size_t bit = size_t{1} << device;
    if (end == n_) {
      Suffix label = stage;
      label.last_update = label.backward_sum + (m_ - 1) * label.backward_max + stage.last_update;
      add_label(labels(begin, bit, device), label);
      return;
    }
    for (size_t mask = 0; mask < masks_; ++mask) {
      if ((mask & bit) != 0) continue;
      for (int next = 0; next < devices_; ++next) {
        if ((mask >> next & 1) == 0) continue;
        const Labels& behind = labels(end, mask, next);
        --left_;
        for (size_t i = 0; i < behind.size() && left_ >= 0; ++i)
          add_label(labels(begin, mask | bit, device), joined(stage, device, behind[i], end, next, i));
      }
    }
  }

  // Adds a label unless another one dominates it, and removes those that it dominates. No later stage names a
  // label of `begin` before all labels of `begin` are there.
  void add_label(Labels& labels, const Suffix& label) {
    left_ -= 1 + static_cast<int64_t>(labels.size());
    for (const Suffix& other : labels)
      if (other.dominates(label)) return;
    std::erase_if(labels, [&](const Suffix& other) { return label.dominates(other); });
    labels.push_back(label);
  }

  // Returns the suffix that begins with `stage`. stage.last_update is the time of its own update.
  Suffix joined(const Suffix& stage, int device, const Suffix& behind, size_t end, int next, size_t index) {
    const DeviceLink& there = topology_.links[static_cast<size_t>(device)][static_cast<size_t>(next)];
    const DeviceLink& back = topology_.links[static_cast<size_t>(next)][static_cast<size_t>(device)];
    const double activation = there.occupied_s(graph_.groups[end - 1].output_bytes);
    const double gradient = back.occupied_s(graph_.groups[end - 1].output_bytes);
    Suffix label;
    label.forward_sum = stage.forward_sum + activation + there.latency_s + behind.forward_sum;
    label.forward_max = std::max({stage.forward_max, activation, behind.forward_max});
    label.backward_sum = stage.backward_sum + gradient + back.latency_s + behind.backward_sum;
    label.backward_max = std::max({stage.backward_max, gradient, behind.backward_max});
    const double end_s = label.backward_sum + (m_ - 1) * label.backward_max + stage.last_update;
    label.last_update = std::max(behind.last_update, end_s);
    label.next_begin = end;
    label.next_device = next;
    label.next_label = index;
    return label;
  }

  std::optional<ChainPlacement> best() {
    std::optional<ChainPlacement> found;
    for (size_t mask = 0; mask < masks_; ++mask) {
      for (int device = 0; device < devices_; ++device) {
        for (const Suffix& label : labels(0, mask, device)) {
          const double seconds = label.seconds(m_);
          if (!found || seconds < found->seconds) found = {placement_of(label, mask, device), seconds};
        }
      }
    }
    return found;
  }

  Placement placement_of(Suffix label, size_t mask, int device) {
    Placement placement;
    while (true) {
      const size_t end = label.next_device < 0 ? n_ : label.next_begin;
      placement.resize(end, device);
      if (label.next_device < 0) return placement;
      mask &= ~(size_t{1} << device);
      device = label.next_device;
      label = labels(end, mask, device)[label.next_label];
    }
  }

  const PlacementGraph& graph_;
  const DeviceTopology& topology_;
  const int m_;
  const size_t n_;
  const int devices_;
  const size_t masks_;
  int64_t left_;  // steps of the search; below 0: too many
  std::vector<Labels> labels_;
};

}  // namespace

std::optional<ChainPlacement> best_chain(const StepSimulator& simulator, int64_t most) {
  if (!simulator.graph().is_chain())
    throw ConfigError("graph", "has branches; dynamic programming places chains only");
  if (simulator.topology().size() > kMostChainDevices)
    throw ConfigError("--devices", fmt::format("names {} devices, but dynamic programming takes at most {}",
                                               simulator.topology().size(), kMostChainDevices));
  if (pairs_of(simulator.graph().groups.size(), simulator.topology().size()) > static_cast<double>(most))
    return {};
  return ChainSearch(simulator, most).run();
}

std::optional<std::vector<int>> stages_of(const PlacementGraph& graph, const Placement& placement) {
  if (!graph.is_chain() || placement.size() != graph.groups.size()) return {};
  std::vector<int> stages;
  for (size_t g = 0; g < placement.size(); ++g) {
    if (g > 0 && placement[g] == placement[g - 1]) continue;
    if (std::count(stages.begin(), stages.end(), placement[g]) > 0) return {};
    stages.push_back(placement[g]);
  }
  return stages;
}

std::vector<size_t> cut_of(const Placement& placement) {
  std::vector<size_t> cut = {0};
  for (size_t g = 1; g < placement.size(); ++g)
    if (placement[g] != placement[g - 1]) cut.push_back(g);
  cut.push_back(placement.size());
  return cut;
}

}  // namespace starling
