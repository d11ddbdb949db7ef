#include "starling/commands/place_measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <numeric>

#include "starling/comm/message_tags.h"
#include "starling/commands/place_stop.h"
#include "starling/optim/update_rule.h"
#include "starling/parallel/pipeline/pipeline.h"
#include "starling/place/best_chain.h"

namespace starling {
namespace {

constexpr size_t kSmallBytes = 64, kLargeBytes = size_t{1} << 20;
constexpr int kTrips = 50;
constexpr double kTripsS = 1;  // no trip of a message begins later

// Returns half of the shortest round trip of a message between ranks 0 and 1. Other ranks do nothing.
double trip_seconds(Group& group, const Clock& clock, size_t bytes) {
  std::vector<char> message(bytes);
  double least = std::numeric_limits<double>::infinity();
  const Nanoseconds first = clock.now();
  bool more = group.rank() < 2;
  for (int trip = 1; more; ++trip) {
    const Nanoseconds begin = clock.now();
    if (group.rank() == 0) {
      more = trip < kTrips && to_seconds(begin - first) < kTripsS;
      message.front() = more ? 1 : 0;  // rank 1 ends with rank 0
      send(group, message.data(), bytes, 1, kLinkTag);
    }
    recv(group, message.data(), bytes, 1 - group.rank(), kLinkTag);
    if (group.rank() == 1) {
      more = message.front() != 0;
      send(group, message.data(), bytes, 0, kLinkTag);
    }
    least = std::min(least, to_seconds(clock.now() - begin) / 2);
  }
  return least;
}

// Returns the least times of the passes of a stage on its device.
ActionPace pace_of(const StepSimulator& simulator, const Placement& placement, int device) {
  const double speed = simulator.topology().devices[static_cast<size_t>(device)].speed;
  if (speed >= 1) return {};
  ActionPace pace;
  for (size_t g = 0; g < placement.size(); ++g) {
    if (placement[g] != device) continue;
    pace.forward_s += simulator.graph().groups[g].forward_s / speed;
    pace.backward_s += simulator.graph().groups[g].backward_s / speed;
  }
  return pace;
}

// One placement on the first ranks. Ranks without a stage have no pipeline.
class PlacedPipeline {
 public:
  PlacedPipeline(const StepSimulator& simulator, const Placement& placement, const PlacedModel& model,
                 const RunSpec& spec, const RunEnvironment& environment, int number)
      : batch_(model.batch) {
    const std::vector<int> stages = stages_of(simulator.graph(), placement).value();
    const int count = static_cast<int>(stages.size()), rank = environment.group.rank();
    if (rank >= count) return;
    std::vector<int> ranks(stages.size());
    std::iota(ranks.begin(), ranks.end(), 0);
    group_ = environment.make_group(fmt::format("place-{}", number), ranks);
    PipelineOptions options;
    options.schedule = make_schedule("gpipe", count, 1, simulator.micro_batches());
    options.cut = cut_of(placement);
    options.pace = pace_of(simulator, placement, stages[static_cast<size_t>(rank)]);
    pipeline_ = std::make_unique<Pipeline>(model.factory, make_update_rule(spec.optimizer), options, *group_,
                                           environment.process.clock);
  }

  // Executes one step of this rank.
  void step() {
    if (!pipeline_) return;
    pipeline_->begin_step({++steps_, 0.0, false});
    pipeline_->forward_backward(batch_);
    pipeline_->update();
  }

 private:
  const Batch batch_;
  std::unique_ptr<Group> group_;
  std::unique_ptr<Pipeline> pipeline_;
  int64_t steps_ = 0;
};

// Returns the time of a step on the rank that takes longest.
double step_seconds(PlacedPipeline& pipeline, const RunEnvironment& environment) {
  Group& group = environment.group;
  if (group.size() > 1) barrier(group);
  const Nanoseconds begin = environment.process.clock.now();
  pipeline.step();
  double seconds = to_seconds(environment.process.clock.now() - begin);
  if (group.size() > 1) all_reduce(group, &seconds, 1, DataType::kFp64, ReduceOp::kMax);
  return seconds;
}

}  // namespace

DeviceLink measure_link(Group& group, const Clock& clock) {
  double seconds[2] = {trip_seconds(group, clock, kSmallBytes), trip_seconds(group, clock, kLargeBytes)};
  broadcast(group, seconds, 2, DataType::kFp64, 0);
  // On a loaded machine a small message may take longer than a large one. At most half of the trip is
  // latency.
  const double large = std::max(seconds[1] - seconds[0], seconds[1] / 2);
  return {std::min(seconds[0], seconds[1] / 2), static_cast<double>(kLargeBytes) / large};
}

double paced_seconds(const StepSimulator& simulator, const Placement& placement) {
  double longest = 0;
  for (int device = 0; device < simulator.topology().size(); ++device) {
    const ActionPace pace = pace_of(simulator, placement, device);
    longest = std::max(longest, simulator.micro_batches() * (pace.forward_s + pace.backward_s));
  }
  return longest;
}

std::vector<double> measure_placements(const StepSimulator& simulator,
                                       const std::vector<Placement>& placements, const PlacedModel& model,
                                       const RunSpec& spec, const RunEnvironment& environment, int rounds) {
  std::vector<std::unique_ptr<PlacedPipeline>> pipelines;
  for (const Placement& placement : placements) {
    if (is_stopped(environment)) return {};
    pipelines.push_back(std::make_unique<PlacedPipeline>(simulator, placement, model, spec, environment,
                                                         static_cast<int>(pipelines.size())));
    step_seconds(*pipelines.back(), environment);
  }
  std::vector<std::vector<double>> steps(placements.size());
  for (int round = 0; round < rounds; ++round) {
    if (is_stopped(environment)) return {};
    for (size_t p = 0; p < pipelines.size(); ++p)
      steps[p].push_back(step_seconds(*pipelines[p], environment));
  }
  std::vector<double> medians;
  for (std::vector<double>& times : steps) {
    std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
    medians.push_back(times[times.size() / 2]);
  }
  return medians;
}

}  // namespace starling
