#include "starling/train/trainer.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "starling/base/error.h"
#include "starling/optim/schedule.h"
#include "starling/spec/on_failure.h"
#include "starling/spec/strategy_table.h"
#include "starling/train/evaluate.h"
#include "starling/train/rank_summary.h"

namespace starling {
namespace {

// The number of last steps whose mean loss the result reports.
constexpr size_t kLossWindow = 20;

double peak_rss_mb() {
  struct rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024.0;
}

class Loop {
 public:
  Loop(const RunSpec& spec, const TrainLength& length, const TrainParts& parts, TrainProgress& progress)
      : spec_(spec), length_(length), parts_(parts), progress_(progress) {
    if (!progress_.start) {
      progress_.start = progress_.last_end = parts.process.clock.now();
      progress_.last_save = *progress_.start;
      progress_.closed_step = length.first_step;
      progress_.result.steps = progress_.result.first_step = length.first_step;
    }
  }

  RunResult run() {
    if (length_.first_step >= length_.total_steps && progress_.result.first_step == length_.first_step)
      say_nothing_is_left();
    if (parts_.close_first) close(length_.first_step, 0);
    for (int64_t step = length_.first_step + 1; step <= length_.total_steps; ++step) {
      const StepReport report = one_step(step);
      parts_.hooks.step_done(step, report);
      unsigned requests = report.stop ? agree_on_requests(step) : 0;
      close(step, requests);
      RunResult& result = progress_.result;
      result.interrupted = (requests & kInterrupt) != 0;
      result.stopped = result.stopped || (!result.interrupted && (requests & kEnd) != 0);
      if (result.interrupted || result.stopped) break;
    }
    return summary();
  }

 private:
  // What a rank asks all ranks for.
  enum Request : unsigned {
    kInterrupt = 1,  // save and end, without a test
    kEnd = 2,        // end as after the last step
    kSave = 4        // write a checkpoint and go on
  };

  // Returns the requests of this rank. Only the rank that leads reads the clock, so that the ranks need not
  // have equal clocks.
  unsigned own_requests() {
    const RunRequests* asked = parts_.process.requests;
    unsigned own = parts_.process.stop.load(std::memory_order_relaxed) ? kInterrupt : 0u;
    if (stop_asked_ || (asked != nullptr && asked->end.load(std::memory_order_relaxed))) own |= kEnd;
    if (!saves_on_request_) return own;
    const double due_s = 60 * spec_.checkpoint.minutes;
    const bool due = due_s > 0 && parts_.rank_gather.leads() &&
                     to_seconds(parts_.process.clock.now() - progress_.last_save) >= due_s &&
                     parts_.hooks.ready_to_save();
    if (due || (asked != nullptr && asked->save.load(std::memory_order_relaxed))) own |= kSave;
    return own;
  }

  // Returns the requests of all ranks. The strategy has told every rank after the same step that there are
  // some. Collective.
  unsigned agree_on_requests(int64_t step) {
    RunRequests* asked = parts_.process.requests;
    const unsigned own = own_requests();
    if (asked != nullptr && (own & kSave) != 0) asked->save = false;
    const double signal = asked != nullptr ? asked->signal.load(std::memory_order_relaxed) : 0;
    const double left = step < length_.total_steps ? 1 : 0;
    // With backup workers, the workers meet after different steps, so the name counts the meetings.
    const std::string name = fmt::format("requests {}", progress_.meetings++);
    unsigned all = 0;
    bool steps_left = false;
    for (const auto& one : parts_.rank_gather.gather_all(name, {static_cast<double>(own), signal, left})) {
      if (one.size() != 3) continue;  // the rank is lost
      all |= static_cast<unsigned>(one[0]);
      progress_.result.signal = std::max(progress_.result.signal, static_cast<int>(one[1]));
      steps_left = steps_left || one[2] > 0;
    }
    // After the last step of all ranks nothing is left to interrupt but the test.
    return steps_left ? all : all & ~static_cast<unsigned>(kInterrupt);
  }

  // Says why a resumed run trains nothing.
  void say_nothing_is_left() {
    parts_.process.sink.emit(Message{
        Severity::kWarning, -1,
        fmt::format("the run already has {} steps, and {} are asked for: nothing is left to train. Give "
                    "--steps above {} (or more --epochs) to train further, or --resume never to start anew",
                    length_.first_step, length_.total_steps, length_.first_step)});
  }

  // Takes one step. Adds the time in which the step waited for data to data_wait_s.
  StepReport attempt(int64_t step, double lr, double factor, double& data_wait_s) {
    const double waited_before = parts_.loader->waited_s();
    const Batch batch = parts_.loader->next();
    data_wait_s += parts_.loader->waited_s() - waited_before;
    parts_.strategy.begin_step({step, lr, own_requests() != 0, factor});
    parts_.strategy.forward_backward(batch);
    return parts_.strategy.update();
  }

  // Returns the factor of the learning rates in update number `it`, counted from 0.
  double lr_factor(int64_t it) const {
    const FitOptions& options = parts_.options;
    if (options.schedule()) return options.schedule()(it);
    if (options.optimizer() || spec_.optimizer.lr == 0) return 1;
    const ScheduleLength length{length_.total_steps, length_.steps_per_epoch, spec_.train.global_batch};
    return learning_rate(spec_.optimizer.lr, spec_.schedule, length, it) / spec_.optimizer.lr;
  }

  // Returns the learning rate of update number `it` by the optimizer of the configuration.
  double lr_of(int64_t it) const {
    if (parts_.options.schedule()) return spec_.optimizer.lr * parts_.options.schedule()(it);
    const ScheduleLength length{length_.total_steps, length_.steps_per_epoch, spec_.train.global_batch};
    return learning_rate(spec_.optimizer.lr, spec_.schedule, length, it);
  }

  StepReport one_step(int64_t step) {
    const Nanoseconds begin = parts_.process.clock.now();
    const uint64_t sent_before = group_sent();
    const double lr = lr_of(step - 1), factor = lr_factor(step - 1);
    StepDone done;
    StepReport report = attempt(step, lr, factor, done.data_wait_s);
    while (report.redo) {
      progress_.bytes_sent += report.bytes_sent;
      progress_.step_sent += report.bytes_sent;
      take_over(report, step - 1, step - 1, to_seconds(parts_.process.clock.now() - begin));
      report = attempt(step, lr, factor, done.data_wait_s);
    }

    progress_.last_end = parts_.process.clock.now();
    done.step_s = to_seconds(progress_.last_end - begin);
    const double usual_s = progress_.times.recent();
    progress_.times.add(done.step_s);
    progress_.losses.push_back(report.loss);
    if (progress_.losses.size() > kLossWindow) progress_.losses.pop_front();
    done.step = progress_.result.steps = step;
    done.epoch = static_cast<double>(step) / static_cast<double>(length_.steps_per_epoch);
    done.loss = report.loss;
    done.lr = lr;
    done.samples_per_s = static_cast<double>(spec_.train.global_batch) / progress_.times.recent();
    done.compute_s = report.compute_s;
    // One process waits for no other. What its strategy takes beside the passes is no waiting.
    done.exposed_comm_s = spec_.train.ranks > 1 || has_servers(spec_) ? report.exposed_comm_s : 0;
    done.slowest_rank = report.slowest_rank;
    done.eta_s = progress_.times.recent() * static_cast<double>(length_.total_steps - step);
    done.checkpoint_s = std::exchange(progress_.unreported_save_s, 0);
    RunResult& result = progress_.result;
    result.compute_s += done.compute_s;
    result.exposed_comm_s += done.exposed_comm_s;
    result.data_wait_s += done.data_wait_s;
    for (size_t p = 0; p < report.phase_s.size(); ++p) {
      if (report.phase_s[p] > 0) result.exchange_s[kExchangePhases[p]] += report.phase_s[p];
    }
    progress_.bytes_sent += report.bytes_sent;
    progress_.step_sent += report.bytes_sent + group_sent() - sent_before;
    if (report.lost > lost_) take_over(report, step - 1, step, std::max(0.0, done.step_s - usual_s));
    parts_.process.sink.emit(done);
    return report;
  }

  // Lets the strategy continue after a loss and reports it. `undisturbed` is the last step before the loss,
  // `made` the last step that was taken. `waited_s` is the time that the loss has cost so far.
  void take_over(const StepReport& report, int64_t undisturbed, int64_t made, double waited_s) {
    const Nanoseconds begin = parts_.process.clock.now();
    lost_ = report.lost;
    const Takeover takeover = parts_.hooks.after_loss(made);
    const double seconds = waited_s + to_seconds(parts_.process.clock.now() - begin);
    RanksLost lost{undisturbed, takeover.lost, takeover.left, seconds};
    std::vector<int>& all = progress_.result.lost_ranks;
    all.insert(all.end(), lost.ranks.begin(), lost.ranks.end());
    progress_.result.recovery_s += lost.seconds;
    parts_.process.sink.emit(lost);
  }

  // Does what is due after a step: a checkpoint, an evaluation.
  void close(int64_t step, unsigned requests) {
    const bool last = step == length_.total_steps || (requests & (kInterrupt | kEnd)) != 0;
    const bool due = spec_.checkpoint.every > 0 && step % spec_.checkpoint.every == 0;
    const bool asked = (requests & (kInterrupt | kSave)) != 0;
    // A run that writes checkpoints, or began from one, writes one of its last step, too. Without it the same
    // command would repeat the steps since the older checkpoint.
    progress_.saves =
        progress_.saves || asked || spec_.checkpoint.every > 0 || progress_.result.first_step > 0;
    const bool saves = due || asked || (last && progress_.saves);
    if (saves) save(step, last || (requests & kSave) != 0);
    const bool epoch_ends = last || step % length_.steps_per_epoch == 0;
    if (epoch_ends && (requests & kInterrupt) == 0) end_epoch(step, last);
    // A checkpoint that was not the last one may have been skipped, because an earlier one was being written.
    if (progress_.result.stopped && !last && progress_.saves) save(step, true);
    progress_.closed_step = step;
  }

  // `must`: the checkpoint is not skipped if an earlier one is still being written.
  void save(int64_t step, bool must) {
    const Nanoseconds begin = progress_.last_save = parts_.process.clock.now();
    parts_.strategy.consensus();
    parts_.hooks.save_checkpoint(step, must);
    const double seconds = to_seconds(parts_.process.clock.now() - begin);
    progress_.unreported_save_s += seconds;
    progress_.result.checkpoint_s += seconds;
  }

  void end_epoch(int64_t step, bool last) {
    const bool calls = static_cast<bool>(parts_.options.callback());
    if (parts_.test == nullptr && !calls) return;
    const Nanoseconds begin = parts_.process.clock.now();
    parts_.strategy.consensus();
    if (spec_.optimizer.ema_decay > 0) parts_.strategy.show_average();
    const bool whole = parts_.test == nullptr || evaluate_now(step, last, begin);
    if (calls && whole) call_back(step, last);
  }

  // Calls the program's callback. The ranks that receive each other's numbers agree to stop at once.
  void call_back(int64_t step, bool last) {
    const bool together = parts_.rank_gather.all_receive();
    const double loss = mean_train_loss(step, together);
    bool stop = false;
    if (together || parts_.rank_gather.leads()) {
      Evaluation evaluation = progress_.evaluation;
      evaluation.step = step;
      if (evaluation.samples == 0) evaluation.loss = std::numeric_limits<double>::quiet_NaN();
      torch::nn::Module& module = *parts_.strategy.evaluated().model.module;
      const EpochState state{step, static_cast<double>(step) / static_cast<double>(length_.steps_per_epoch),
                             loss, module};
      module.eval();
      stop = parts_.options.callback()(state, evaluation) == kStop;
      module.train();
    }
    if (last) return;  // the run ends anyway
    if (!together) {
      stop_asked_ = stop_asked_ || stop;
      return;
    }
    for (const std::vector<double>& one :
         parts_.rank_gather.gather(fmt::format("verdict {}", step), {stop ? 1.0 : 0.0}))
      progress_.result.stopped = progress_.result.stopped || one.at(0) != 0;
  }

  // Returns the mean over the ranks of the loss of the last steps if they receive each other's numbers,
  // otherwise this rank's.
  double mean_train_loss(int64_t step, bool together) {
    const double own = train_loss();
    if (!together) return own;
    double sum = 0;
    const auto all = parts_.rank_gather.gather(fmt::format("train loss {}", step), {own});
    for (const std::vector<double>& one : all) sum += one.at(0);
    return sum / static_cast<double>(all.size());
  }

  // Returns the mean loss of the last steps. NaN if there are none.
  double train_loss() const {
    const std::deque<double>& losses = progress_.losses;
    if (losses.empty()) return std::numeric_limits<double>::quiet_NaN();
    return std::accumulate(losses.begin(), losses.end(), 0.0) / static_cast<double>(losses.size());
  }

  // The evaluation began at `begin`. Returns false if a signal has broken it off.
  bool evaluate_now(int64_t step, bool last, Nanoseconds begin) {
    RankGather& sharers = parts_.evaluators != nullptr ? *parts_.evaluators : parts_.rank_gather;
    const int64_t batch =
        spec_.train.eval_batch > 0
            ? spec_.train.eval_batch
            : std::max<int64_t>(1, spec_.train.global_batch / sharers.ranks() / spec_.train.accumulate);
    // Ranks that compute a sample together would wait for each other.
    const bool whole = last || !evaluates_alone(spec_);
    EvalDone done = evaluate(parts_.strategy.evaluated(), *parts_.test, batch, parts_.options.metrics(),
                             sharers, step, [&](int64_t samples, int64_t of) {
                               parts_.process.sink.show_progress({step, samples, of});
                               return whole || !parts_.process.stop.load(std::memory_order_relaxed);
                             });
    done.seconds = to_seconds(parts_.process.clock.now() - begin);
    progress_.result.evaluation_s += done.seconds;
    if (done.samples < 0) return false;
    progress_.evaluation = done;
    parts_.process.sink.emit(done);
    return true;
  }

  // Puts the last evaluation into the result. If the rank that led the evaluation was lost, the result is
  // computed from the parts of the remaining ranks.
  void summarize_evaluation(const RankSummaries& all) {
    EvalDone& own = progress_.evaluation;
    if (own.samples == 0) return;
    const EvalDone whole =
        own.samples == parts_.test->size() ? own : evaluation_of(all, parts_.options.metrics());
    progress_.result.test_loss = whole.loss;
    progress_.result.test_accuracy = whole.accuracy;
    progress_.result.test_metrics = whole.metrics;
  }

  // Returns what every rank contributes. Collective. The result is complete on the rank that leads.
  RankSummaries gather_summaries() {
    const EvalDone& test = progress_.evaluation;
    RankSummary own;
    own.bytes_sent = static_cast<double>(progress_.bytes_sent + group_sent());
    own.peak_rss_mb = peak_rss_mb();
    own.step_bytes = static_cast<double>(progress_.step_sent);
    own.from_servers.assign(bytes_from_servers_.begin(), bytes_from_servers_.end());
    own.test_loss = test.loss;
    own.test_samples = static_cast<double>(test.samples);
    own.test_weight = test.loss_weight;
    own.compute_s = progress_.result.compute_s;
    own.exposed_comm_s = progress_.result.exposed_comm_s;
    own.data_wait_s = progress_.result.data_wait_s;
    for (const Metric& metric : parts_.options.metrics())
      own.metrics.push_back(test.samples > 0 ? metric_of(test, metric.name) : 0);
    own.metric_weights = test.metric_weights;
    own.metric_weights.resize(own.metrics.size());
    RankSummaries all;
    for (const std::vector<double>& numbers : parts_.rank_gather.gather_last(own.numbers())) {
      all.emplace_back();
      if (!numbers.empty()) all.back() = RankSummary::of(numbers);
    }
    return all;
  }

  RunResult summary() {
    RunResult& result = progress_.result;
    result.strategy = parts_.hooks.statistics();
    bytes_from_servers_ = parts_.strategy.bytes_from_servers();
    parts_.hooks.leave();
    const RankSummaries all = gather_summaries();
    list_lost_ranks(all);
    add_up_bytes(all, result);
    list_rank_times(all, spec_.train.ranks, result);
    summarize_evaluation(all);
    result.model = spec_.model.name;
    result.exchange = spec_.exchange.name;
    result.ranks = spec_.train.ranks;
    result.params = parts_.strategy.whole_parameters();
    result.wall_s = to_seconds(parts_.process.clock.now() - *progress_.start);
    const bool even = exchange_traits(spec_).lockstep == Lockstep::kEveryStep;
    const double step_s = even ? progress_.times.overall() : progress_.times.mean();
    result.samples_per_s = step_s > 0 ? static_cast<double>(spec_.train.global_batch) / step_s : 0;
    result.train_loss = train_loss();
    return result;
  }

  // Adds the ranks without a summary to the lost ranks. They may have been lost since the last step. Only the
  // leading rank knows which summaries there are.
  void list_lost_ranks(const RankSummaries& all) {
    std::vector<int>& lost = progress_.result.lost_ranks;
    for (int rank = 0; parts_.rank_gather.leads() && rank < static_cast<int>(all.size()); ++rank) {
      const bool known = std::find(lost.begin(), lost.end(), rank) != lost.end();
      if (!all[static_cast<size_t>(rank)] && !known) lost.push_back(rank);
    }
  }

  uint64_t group_sent() const { return parts_.group.traffic().sent(); }

  const RunSpec& spec_;
  const TrainLength& length_;
  const TrainParts& parts_;
  TrainProgress& progress_;
  int lost_ = 0;
  bool stop_asked_ = false;  // the callback of this rank asked to stop, and the ranks have not agreed yet
  const bool saves_on_request_ = saves_on_request(spec_);
  std::vector<uint64_t> bytes_from_servers_;
};

}  // namespace

TrainLength train_length(const RunSpec& spec, const Source& data) {
  TrainLength length;
  length.steps_per_epoch = data.size() / spec.train.global_batch;
  if (length.steps_per_epoch == 0 && spec.train.steps <= 0)
    throw too_few_samples(data, spec.train.global_batch);
  length.total_steps = spec.train.steps > 0
                           ? spec.train.steps
                           : static_cast<int64_t>(std::llround(spec.train.epochs *
                                                               static_cast<double>(length.steps_per_epoch)));
  if (length.total_steps <= 0) {
    throw ConfigError(
        "train.epochs",
        fmt::format("{} epochs of {} steps are less than one step; give --epochs or --steps above 0",
                    spec.train.epochs, length.steps_per_epoch));
  }
  return length;
}

RunResult train(const RunSpec& spec, const TrainLength& length, const TrainParts& parts,
                TrainProgress& progress) {
  return Loop(spec, length, parts, progress).run();
}

}  // namespace starling
