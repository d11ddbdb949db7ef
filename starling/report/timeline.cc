#include "starling/report/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>

#include "starling/base/error.h"
#include "starling/base/json_depth.h"
#include "starling/base/json_number.h"
#include "starling/base/read_file.h"
#include "starling/plan/schedule_check.h"

namespace starling {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr int kDeepest = 3;           // levels of the file
constexpr double kLongestStep = 1e9;  // seconds

constexpr ActionKind kKinds[] = {ActionKind::kForward,        ActionKind::kBackward,
                                 ActionKind::kSendActivation, ActionKind::kRecvActivation,
                                 ActionKind::kSendGradient,   ActionKind::kRecvGradient};

[[noreturn]] void no_timeline(const std::string& path, const std::string& why) {
  throw ConfigError(path, fmt::format("is not the timeline of a pipeline: {}", why));
}

ActionKind kind_of(const std::string& path, const std::string& code) {
  for (const ActionKind kind : kKinds) {
    if (code_of(kind) == code) return kind;
  }
  no_timeline(path, fmt::format("\"{}\" is not an action of a schedule", code));
}

bool computes(const Action& action) {
  return action.kind == ActionKind::kForward || action.kind == ActionKind::kBackward;
}

// Returns the schedule that the ranks executed.
Schedule schedule_of(const StepTimeline& timeline) {
  Schedule schedule;
  schedule.name = timeline.schedule;
  schedule.ranks = timeline.ranks;
  schedule.chunks = timeline.chunks;
  schedule.micro_batches = timeline.micro_batches;
  schedule.actions.resize(timeline.ranks);
  for (const TimedAction& timed : timeline.actions) schedule.actions.at(timed.rank).push_back(timed.action);
  return schedule;
}

}  // namespace

SimulatedStep planned_step(const StepTimeline& measured) {
  const Schedule schedule = schedule_of(measured);
  const size_t stages = schedule.stages();
  ScheduleCosts costs{std::vector<double>(stages), std::vector<double>(stages), 0};
  for (const TimedAction& timed : measured.actions) {
    if (!computes(timed.action)) continue;
    auto& of_stages = timed.action.kind == ActionKind::kForward ? costs.forward : costs.backward;
    of_stages.at(schedule.stage_of(timed.rank, timed.action.chunk)) +=
        (timed.end - timed.begin) / measured.micro_batches;
  }
  check_schedule(schedule);
  return simulate_schedule(schedule, costs);
}

double idle_share(const StepTimeline& measured) {
  double busy = 0, end = 0;
  for (const TimedAction& timed : measured.actions) {
    if (computes(timed.action)) busy += timed.end - timed.begin;
    end = std::max(end, timed.end);
  }
  return end > 0 ? 1 - busy / (measured.ranks * end) : 0;
}

void write_timeline(const std::string& path, const StepTimeline& timeline) {
  OrderedJson actions = OrderedJson::array();
  for (const TimedAction& t : timeline.actions) {
    actions.push_back({{"rank", t.rank},
                       {"kind", std::string(code_of(t.action.kind))},
                       {"micro_batch", t.action.micro_batch},
                       {"chunk", t.action.chunk},
                       {"begin_s", t.begin},
                       {"end_s", t.end}});
  }
  const OrderedJson json = {{"schedule", timeline.schedule},
                            {"ranks", timeline.ranks},
                            {"chunks", timeline.chunks},
                            {"micro_batches", timeline.micro_batches},
                            {"actions", actions}};
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) << "\n";
  file.close();
  if (file) return;
  std::remove(path.c_str());  // a part of the file would be no timeline
  throw Error(ErrorCode::kInternal, path + " cannot be written. Is the disk full?");
}

StepTimeline read_timeline(const std::string& path) {
  const FileText file = read_file(path);
  if (file.error != 0) no_timeline(path, file.reason());
  StepTimeline timeline;
  try {
    const auto json = parse_shallow<OrderedJson>(file.text, kDeepest);
    timeline.schedule = json.at("schedule").get<std::string>();
    timeline.ranks = integer_of<int>(json.at("ranks"));
    timeline.chunks = integer_of<int>(json.at("chunks"));
    timeline.micro_batches = integer_of<int>(json.at("micro_batches"));
    for (const OrderedJson& a : json.at("actions")) {
      TimedAction timed;
      timed.rank = integer_of<int>(a.at("rank"));
      timed.action.kind = kind_of(path, a.at("kind").get<std::string>());
      timed.action.micro_batch = integer_of<int>(a.at("micro_batch"));
      timed.action.chunk = integer_of<int>(a.at("chunk"));
      timed.begin = a.at("begin_s").get<double>();
      timed.end = a.at("end_s").get<double>();
      if (timed.rank < 0 || timed.rank >= timeline.ranks || timed.action.chunk < 0 ||
          timed.action.chunk >= timeline.chunks)
        no_timeline(path, fmt::format("it has {} ranks of {} chunks, and an action of rank {}, chunk {}",
                                      timeline.ranks, timeline.chunks, timed.rank, timed.action.chunk));
      if (!(timed.begin >= 0 && timed.begin <= timed.end && timed.end <= kLongestStep))
        no_timeline(path, fmt::format("an action lasts from {} to {} s", timed.begin, timed.end));
      timeline.actions.push_back(timed);
    }
  } catch (const OrderedJson::exception& error) {
    no_timeline(path, error.what());
  }
  // Each rank has two actions or more for each chunk and micro-batch.
  const auto actions = std::ssize(timeline.actions);
  if (timeline.ranks < 1 || timeline.chunks < 1 || timeline.micro_batches < 1 ||
      timeline.ranks > actions / timeline.chunks / timeline.micro_batches)
    no_timeline(path, fmt::format("it has {} actions of {} ranks with {} chunks and {} micro-batches",
                                  actions, timeline.ranks, timeline.chunks, timeline.micro_batches));
  return timeline;
}

}  // namespace starling
