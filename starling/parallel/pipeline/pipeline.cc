#include "starling/parallel/pipeline/pipeline.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "starling/comm/bootstrap.h"
#include "starling/comm/message_tags.h"
#include "starling/parallel/all_reduce/all_reduce.h"
#include "starling/parallel/replica/gather_state.h"
#include "starling/plan/schedule_simulation.h"

namespace starling {
namespace {

StageModelOptions stage_options(const PipelineOptions& options) {
  return {options.schedule, options.working,     options.seed, options.cut,
          options.sample,   options.activations, options.pace};
}

// Makes the strategy of a single replica: synchronous SGD.
Pipeline::MakeExchange single_replica(const UpdateRule& rule, const PipelineOptions& options, Group& alone,
                                      const Clock& clock) {
  return [&](const ModelFactory& part, const StageModel& stage) {
    AllReduceOptions own;
    own.master = options.master;
    own.working = options.working;
    own.clip_norm = options.clip_norm;
    own.seed = options.seed;
    own.parts = stage.parts();
    return std::make_unique<AllReduce>(part, rule, own, alone, clock);
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
  Step own = step;
  own.stop_requested = wish_heard_;
  exchange_->begin_step(own);
  if (options_.share_tied) stage_->share_tied();
}

double Pipeline::forward_backward(const Batch& batch) {
  return exchange_->forward_backward(batch);
}

StepReport Pipeline::update() {
  StepReport report = exchange_->update();
  stage_->show_part();
  stops_ = stops_ || report.stop;
  // The exchange counts the whole schedule as computation.
  report.compute_s -= stage_->wait_s();
  report.expose(ExchangePhase::kActivations, stage_->wait_s());
  const uint64_t counted = counted_bytes();
  report.bytes_sent += counted - counted_before_;
  counted_before_ = counted;
  read_notices(report);
  return report;
}

uint64_t Pipeline::counted_bytes() const {
  uint64_t bytes = 0;
  for (const Group* group : options_.counting) bytes += group->traffic().sent();
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
    ranged_values_ += n.ranged_values;
    saturated_values_ += n.saturated_values;
    if (n.busy_s > slowest && group_.size() > 1) {
      slowest = n.busy_s;
      report.slowest_rank = group_.job_rank(r);
    }
  }
  if (report.stop) wish_heard_ = stops_ = false;  // all ranks meet now, and may go on
  bubble_ = span > 0 ? 1 - busy / (group_.size() * span) : 0;
  if (++steps_seen_ > 1) bubble_sum_ += bubble_;
}

void Pipeline::consensus() {
  exchange_->consensus();
  if (options_.share_tied) stage_->share_tied();
  stage_->gather();
}

void Pipeline::show_average() {
  exchange_->show_average();
  if (options_.share_tied) stage_->share_tied();
  stage_->gather();
}

StrategyState Pipeline::state() {
  StrategyState state = exchange_->state();
  add_ranges(state);
  if (options_.replica == 0) gather_state(group_, state);
  if (group_.rank() != 0 || options_.replica != 0) state = {{}, {}, {}, state.step};
  return state;
}

// Adds the calibrated ranges of every replica to the state of replica 0. Both ends of a cut have an entry,
// and the two are equal.
void Pipeline::add_ranges(StrategyState& state) {
  const CutRanges* ranges = stage_->ranges();
  if (ranges == nullptr) return;
  StrategyState own;
  own.optimizer = ranges->state(options_.replica);
  if (options_.same_stage != nullptr) gather_state(*options_.same_stage, own);
  if (options_.replica == 0) state.optimizer.merge(own.optimizer);
}

void Pipeline::load_state(const StrategyState& state) {
  StrategyState rest = state;
  std::erase_if(rest.optimizer, [](const auto& item) { return CutRanges::is_entry(item.first); });
  exchange_->load_state(rest);
  if (stage_->ranges() != nullptr) stage_->ranges()->load(state.optimizer, options_.replica);
}

StrategyStats Pipeline::strategy_stats() {
  StrategyStats stats;
  if (options_.tells_exchange) stats = exchange_->strategy_stats();
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
  stats["bubble"] = static_cast<double>(bubble_);
  stats["bubble_mean"] = static_cast<double>(mean);
  stats["bubble_planned"] = static_cast<double>(planned);
  stats["bubble_balanced"] = static_cast<double>(balanced);
  stats["stages"] = static_cast<double>(schedule.stages());
  stats["micro_batches"] = static_cast<double>(schedule.micro_batches);
  stats["live_activations"] = static_cast<double>(stage_->live_activations());
  stats["stage_bytes"] = static_cast<double>(bytes);
  stats["replicas"] = static_cast<double>(options_.replicas);
  if (stage_->ranges() != nullptr) {
    stats["ranged_values"] = ranged_values_;
    stats["saturated_values"] = saturated_values_;
  }
  return stats;
}

std::vector<MeasuredAction> Pipeline::gather_timeline() {
  // The words of an action are its kind, micro-batch, chunk, begin and end.
  constexpr size_t kWords = 5;
  std::vector<int64_t> own;
  for (const MeasuredAction& a : stage_->timeline()) {
    own.insert(own.end(), {static_cast<int64_t>(a.action.kind), a.action.micro_batch, a.action.chunk,
                           a.begin_ns, a.end_ns});
  }
  if (group_.rank() != 0) {
    send(group_, own.data(), own.size() * sizeof(int64_t), 0, kTimelineTag);
    return {};
  }
  const bool one_host = static_cast<int>(group_.local_ranks().size()) == group_.size();
  std::vector<MeasuredAction> all;
  std::vector<int64_t> begins;
  for (int r = 0; r < group_.size(); ++r) {
    std::vector<int64_t> words(own);
    if (r > 0) {
      words.resize(options_.schedule.actions[r].size() * kWords);
      recv(group_, words.data(), words.size() * sizeof(int64_t), r, kTimelineTag);
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
