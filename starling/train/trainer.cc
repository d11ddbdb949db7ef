#include "starling/train/trainer.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <numeric>

#include "starling/base/error.h"
#include "starling/optim/schedule.h"
#include "starling/train/evaluate.h"

namespace starling {
namespace {

// Steps whose mean loss the result tells.
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
      progress_.start = progress_.last_end = parts.clock.now();
      progress_.closed_step = length.first_step;
    }
  }

  RunResult run() {
    if (parts_.close_first) close(length_.first_step, false);
    for (int64_t step = length_.first_step + 1; step <= length_.total_steps; ++step) {
      const StepReport report = one_step(step);
      close(step, report.stop);
      if (report.stop) {
        progress_.result.interrupted = true;
        break;
      }
    }
    return summary();
  }

 private:
  // Adds the time in which it waited for data.
  StepReport attempt(int64_t step, double lr, double& data_wait_s) {
    const double waited_before = parts_.loader->waited_s();
    const Batch batch = parts_.loader->next();
    data_wait_s += parts_.loader->waited_s() - waited_before;
    parts_.strategy.begin_step({step, lr, parts_.stop.load(std::memory_order_relaxed)});
    parts_.strategy.forward_backward(batch);
    return parts_.strategy.update();
  }

  StepReport one_step(int64_t step) {
    const Nanoseconds begin = parts_.clock.now();
    const uint64_t sent_before = group_sent();
    const ScheduleLength schedule{length_.total_steps, length_.steps_per_epoch, spec_.train.global_batch};
    const double lr = learning_rate(spec_.optimizer.lr, spec_.schedule, schedule, step - 1);
    StepDone done;
    StepReport report = attempt(step, lr, done.data_wait_s);
    while (report.redo) {
      progress_.bytes_sent += report.bytes_sent;
      progress_.step_sent += report.bytes_sent;
      take_over(report, step - 1, step - 1, to_seconds(parts_.clock.now() - begin));
      report = attempt(step, lr, done.data_wait_s);
    }

    progress_.last_end = parts_.clock.now();
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
    done.exposed_comm_s = report.exposed_comm_s;
    done.slowest_rank = report.slowest_rank;
    done.eta_s = progress_.times.recent() * static_cast<double>(length_.total_steps - step);
    RunResult& result = progress_.result;
    result.compute_s += done.compute_s;
    result.exposed_comm_s += done.exposed_comm_s;
    result.data_wait_s += done.data_wait_s;
    progress_.bytes_sent += report.bytes_sent;
    progress_.step_sent += report.bytes_sent + group_sent() - sent_before;
    if (report.lost > lost_ && parts_.after_loss)
      take_over(report, step - 1, step, std::max(0.0, done.step_s - usual_s));
    parts_.sink.emit(done);
    return report;
  }

  // undisturbed: the last step before the loss. made: the last one. waited_s: what the loss has cost already.
  void take_over(const StepReport& report, int64_t undisturbed, int64_t made, double waited_s) {
    const Nanoseconds begin = parts_.clock.now();
    lost_ = report.lost;
    const Takeover takeover = parts_.after_loss(made);
    const double seconds = waited_s + to_seconds(parts_.clock.now() - begin);
    RanksLost lost{undisturbed, takeover.lost, takeover.left, seconds};
    std::vector<int>& all = progress_.result.lost_ranks;
    all.insert(all.end(), lost.ranks.begin(), lost.ranks.end());
    progress_.result.recovery_s += lost.seconds;
    parts_.sink.emit(lost);
  }

  // What is due after a step.
  void close(int64_t step, bool stop) {
    const bool last = step == length_.total_steps || stop;
    const bool due = spec_.checkpoint.every > 0 && step % spec_.checkpoint.every == 0;
    if (due || stop) {
      parts_.strategy.consensus();
      parts_.save_checkpoint(step);
    }
    if (parts_.test != nullptr && (last || step % length_.steps_per_epoch == 0)) evaluate_now(step);
    progress_.closed_step = step;
  }

  void evaluate_now(int64_t step) {
    parts_.strategy.consensus();
    Tally& sharers = parts_.evaluators != nullptr ? *parts_.evaluators : parts_.tally;
    const int64_t batch = spec_.train.eval_batch > 0
                              ? spec_.train.eval_batch
                              : std::max<int64_t>(1, spec_.train.global_batch / sharers.ranks());
    progress_.evaluation = evaluate(parts_.evaluated, *parts_.test, batch, sharers, step);
    parts_.sink.emit(progress_.evaluation);
  }

  // The last evaluation. One that was led by a rank that is lost is put together from what the others did of it.
  void summarise_evaluation(const std::vector<std::vector<double>>& all) {
    EvalDone& own = progress_.evaluation;
    if (own.samples == 0) return;
    progress_.result.test_loss = own.loss;
    progress_.result.test_accuracy = own.accuracy;
    if (own.samples == parts_.test->size()) return;
    double loss = 0, right = 0, samples = 0;
    for (const std::vector<double>& numbers : all) {
      if (numbers.empty()) continue;
      loss += numbers[4] * numbers[6];
      right += numbers[5] * numbers[6];
      samples += numbers[6];
    }
    progress_.result.test_loss = loss / samples;
    if (own.accuracy >= 0) progress_.result.test_accuracy = right / samples;
  }

  RunResult summary() {
    RunResult& result = progress_.result;
    if (parts_.fingerprint) result.strategy = parts_.fingerprint();
    if (parts_.leave) parts_.leave();
    const EvalDone& test = progress_.evaluation;
    const auto all =
        parts_.tally.gather_last({static_cast<double>(progress_.bytes_sent + group_sent()), peak_rss_mb(),
                                  static_cast<double>(progress_.step_sent), pulled(), test.loss,
                                  test.accuracy, static_cast<double>(test.samples)});
    add_up_ranks(all);
    summarise_evaluation(all);
    result.model = spec_.model.name;
    result.exchange = spec_.exchange.name;
    result.ranks = spec_.train.ranks;
    result.params = parameter_count(parts_.evaluated);
    result.wall_s = to_seconds(parts_.clock.now() - *progress_.start);
    const bool even = spec_.exchange.name == "all-reduce" || spec_.exchange.name == "central";
    const double step_s = even ? progress_.times.overall() : progress_.times.mean();
    result.samples_per_s = step_s > 0 ? static_cast<double>(spec_.train.global_batch) / step_s : 0;
    const std::deque<double>& losses = progress_.losses;
    if (!losses.empty()) {
      result.train_loss =
          std::accumulate(losses.begin(), losses.end(), 0.0) / static_cast<double>(losses.size());
    }
    return result;
  }

  // Bytes and memory, of all ranks. "step_bytes": in steps alone (no evaluation, no checkpoint), by all ranks, and all that
  // servers sent. "bytes_balance": the largest of any rank or server over the mean; left out where none moved.
  void add_up_ranks(const std::vector<std::vector<double>>& all) {
    RunResult& result = progress_.result;
    double sent = 0, pulled = 0, most = 0, ranks = 0;
    result.bytes_sent = 0;
    result.peak_rss_mb.clear();
    std::vector<int>& lost = result.lost_ranks;
    for (size_t r = 0; r < all.size(); ++r) {
      const std::vector<double>& numbers = all[r];
      if (numbers.empty()) {  // lost, perhaps after the last step told of it
        const bool known = std::find(lost.begin(), lost.end(), static_cast<int>(r)) != lost.end();
        if (!known && parts_.tally.leads()) lost.push_back(static_cast<int>(r));
        continue;
      }
      ++ranks;
      result.bytes_sent += static_cast<uint64_t>(numbers[0]);
      result.peak_rss_mb.push_back(numbers[1]);
      sent += numbers[2];
      pulled += numbers[3];
      most = std::max(most, numbers[2]);
    }
    // Servers share out the keys, so that each sends its part of what is pulled.
    const auto servers = pulled > 0 ? static_cast<double>(spec_.exchange.servers) : 0;
    if (servers > 0) most = std::max(most, pulled / servers);
    const double mean = (sent + pulled) / (ranks + servers);
    result.strategy["step_bytes"] = sent + pulled;
    if (mean > 0) result.strategy["bytes_balance"] = most / mean;
  }

  // What servers sent to this rank: they are no ranks and count nothing here.
  double pulled() const {
    const std::map<std::string, double>& print = progress_.result.strategy;
    const auto exchanged = print.find("bytes_exchanged");
    return exchanged == print.end() ? 0 : exchanged->second - static_cast<double>(progress_.bytes_sent);
  }

  uint64_t group_sent() const {
    const TrafficCount traffic = parts_.group.traffic();
    return traffic.socket_sent + traffic.window_written;
  }

  const RunSpec& spec_;
  const TrainLength& length_;
  const TrainParts& parts_;
  TrainProgress& progress_;
  int lost_ = 0;
};

}  // namespace

TrainLength train_length(const RunSpec& spec, int64_t steps_per_epoch) {
  TrainLength length;
  length.steps_per_epoch = steps_per_epoch;
  length.total_steps =
      spec.train.steps > 0
          ? spec.train.steps
          : static_cast<int64_t>(std::llround(spec.train.epochs * static_cast<double>(steps_per_epoch)));
  if (length.total_steps <= 0) {
    throw ConfigError(
        "train.epochs",
        fmt::format("{} epochs of {} steps come to no step at all; give --epochs or --steps above 0",
                    spec.train.epochs, steps_per_epoch));
  }
  return length;
}

RunResult train(const RunSpec& spec, const TrainLength& length, const TrainParts& parts,
                TrainProgress& progress) {
  return Loop(spec, length, parts, progress).run();
}

}  // namespace starling
