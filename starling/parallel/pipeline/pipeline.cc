#include "starling/parallel/pipeline/pipeline.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "starling/comm/bootstrap.h"
#include "starling/parallel/all_reduce.h"
#include "starling/parallel/gather_state.h"
#include "starling/plan/schedule_simulation.h"

namespace starling {
namespace {

constexpr uint32_t kTimelineTag = 0x52000000u;

StageModelOptions stage_options(const PipelineOptions& options) {
  return {options.schedule, options.working, options.seed, options.cut, options.sample, options.activations};
}

// Synchronous SGD of a single replica.
Pipeline::MakeExchange single_replica(const UpdateRule& rule, const PipelineOptions& options, Group& alone,
                                      const Clock& clock) {
  return [&](const ModelFactory& part, const StageModel& stage) {
    AllReduceOptions own;
    own.master = options.master;
    own.working = options.working;
    own.clip_norm = options.clip_norm;
    own.seed = options.seed;
    own.parts = stage.parts();
    auto strategy = std::make_unique<AllReduce>(part, rule, own, alone, clock);
    BuiltStrategy built;
    built.evaluated = &strategy->evaluated();
    built.fingerprint = [] { return std::map<std::string, double>(); };
    built.strategy = std::move(strategy);
    return built;
  };
}

}  // namespace

Pipeline::Pipeline(const ModelFactory& factory, const PipelineOptions& options, Group& group,
                   const Clock& clock, const MakeExchange& make_exchange)
    : options_(options),
      group_(group),
      clock_(clock),
      stage_(std::make_unique<StageModel>(factory, stage_options(options), group, clock)) {
  exchange_ = make_exchange([this] { return stage_->part(); }, *stage_);
  counted_before_ = counted_bytes();
}

Pipeline::Pipeline(const ModelFactory& factory, const UpdateRule& rule, const PipelineOptions& options,
                   Group& group, const Clock& clock)
    : options_(options),
      group_(group),
      clock_(clock),
      alone_(make_single_group()),
      stage_(std::make_unique<StageModel>(factory, stage_options(options), group, clock)) {
  exchange_ = single_replica(rule, options, *alone_, clock)([this] { return stage_->part(); }, *stage_);
}

Pipeline::~Pipeline() = default;

void Pipeline::begin_step(const Step& step) {
  stage_->begin_step(step.index, step.stop_requested, stops_);
  exchange_.strategy->begin_step({step.index, step.lr, wish_heard_});
  if (options_.share_tied) stage_->share_tied();
}

double Pipeline::forward_backward(const Batch& batch) {
  return exchange_.strategy->forward_backward(batch);
}

StepReport Pipeline::update() {
  StepReport report = exchange_.strategy->update();
  stops_ = stops_ || report.stop;
  report.compute_s -= stage_->wait_s();  // to the exchange the table is all computing
  report.exposed_comm_s += stage_->wait_s();
  const uint64_t counted = counted_bytes();
  report.bytes_sent += counted - counted_before_;
  counted_before_ = counted;
  read_notices(report);
  return report;
}

uint64_t Pipeline::counted_bytes() const {
  uint64_t bytes = 0;
  for (const Group* group : options_.counting) {
    const TrafficCount traffic = group->traffic();
    bytes += traffic.socket_sent + traffic.window_written;
  }
  return bytes;
}

void Pipeline::read_notices(StepReport& report) {
  const std::vector<StageNotice>& notices = stage_->notices();
  double busy = 0, span = 0, slowest = -1;
  report.stop = false;
  for (int r = 0; r < group_.size(); ++r) {
    const StageNotice& n = notices[r];
    wish_heard_ = wish_heard_ || n.wishes_stop > 0;
    report.stop = report.stop || n.stops > 0;
    busy += n.busy_s;
    span = std::max(span, n.span_s);
    if (n.busy_s > slowest && group_.size() > 1) {
      slowest = n.busy_s;
      report.slowest_rank = options_.ranks.empty() ? r : options_.ranks[r];
    }
  }
  bubble_ = span > 0 ? 1 - busy / (group_.size() * span) : 0;
  if (++steps_seen_ > 1) bubble_sum_ += bubble_;
}

void Pipeline::consensus() {
  exchange_.strategy->consensus();
  if (options_.share_tied) stage_->share_tied();
  stage_->gather();
}

StrategyState Pipeline::state() {
  StrategyState state = exchange_.strategy->state();
  if (options_.replica == 0) gather_state(group_, state);
  if (group_.rank() != 0 || options_.replica != 0) state = {{}, {}, {}, state.step};
  return state;
}

void Pipeline::load_state(const StrategyState& state) {
  exchange_.strategy->load_state(state);
}

std::vector<std::pair<std::string, double>> Pipeline::fingerprint() const {
  const Schedule& schedule = options_.schedule;
  double planned = planned_bubble(schedule.name, schedule.ranks, schedule.chunks, schedule.micro_batches);
  if (planned < 0) planned = simulate_schedule(schedule, {}).bubble;
  double balanced = planned, bytes = 0;
  const std::vector<StageNotice>& notices = stage_->notices();
  if (!notices.empty()) {
    ScheduleCosts costs{std::vector<double>(schedule.stages()), std::vector<double>(schedule.stages()), 0};
    for (int s = 0; s < schedule.stages(); ++s) {
      costs.forward[s] = notices[schedule.rank_of(s)].forward_s;
      costs.backward[s] = notices[schedule.rank_of(s)].backward_s;
    }
    balanced = simulate_schedule(schedule, costs).bubble;
    for (const StageNotice& n : notices) bytes += n.payload_bytes;
  }
  const double mean = steps_seen_ > 1 ? bubble_sum_ / static_cast<double>(steps_seen_ - 1) : bubble_;
  return {{"bubble", bubble_},
          {"bubble_mean", mean},
          {"bubble_planned", planned},
          {"bubble_balanced", balanced},
          {"stages", schedule.stages()},
          {"micro_batches", schedule.micro_batches},
          {"live_activations", stage_->live_activations()},
          {"stage_bytes", bytes}};
}

std::vector<MeasuredAction> Pipeline::gather_timeline() {
  // Words of an action: kind, micro-batch, chunk, begin, end.
  constexpr size_t kWords = 5;
  std::vector<int64_t> own;
  for (const MeasuredAction& a : stage_->timeline()) {
    own.insert(own.end(), {static_cast<int64_t>(a.action.kind), a.action.micro_batch, a.action.chunk,
                           a.begin_ns, a.end_ns});
  }
  if (group_.rank() != 0) {
    group_.send(own.data(), own.size() * sizeof(int64_t), 0, kTimelineTag);
    return {};
  }
  const bool one_host = static_cast<int>(group_.local_ranks().size()) == group_.size();
  std::vector<MeasuredAction> all;
  std::vector<int64_t> begins;
  for (int r = 0; r < group_.size(); ++r) {
    std::vector<int64_t> words(own);
    if (r > 0) {
      words.resize(options_.schedule.actions[r].size() * kWords);
      group_.recv(words.data(), words.size() * sizeof(int64_t), r, kTimelineTag);
    }
    begins.push_back(words.empty() ? 0 : words[3]);
    for (size_t i = 0; i + kWords <= words.size(); i += kWords) {
      Action action;
      action.kind = static_cast<ActionKind>(words[i]);
      action.micro_batch = static_cast<int>(words[i + 1]);
      action.chunk = static_cast<int>(words[i + 2]);
      all.push_back({r, action, words[i + 3], words[i + 4]});
    }
  }
  const int64_t earliest = *std::min_element(begins.begin(), begins.end());
  for (MeasuredAction& a : all) {
    const int64_t origin = one_host ? earliest : begins[a.rank];
    a.begin_ns -= origin;
    a.end_ns -= origin;
  }
  return all;
}

}  // namespace starling
