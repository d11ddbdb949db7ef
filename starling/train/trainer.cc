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
#include "starling/train/step_times.h"

namespace starling {
namespace {

constexpr size_t kLossWindow = 20;

double peak_rss_mb() {
  struct rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024.0;
}

// The loop and what it adds up.
class Loop {
 public:
  Loop(const RunSpec& spec, const TrainLength& length, const TrainParts& parts)
      : spec_(spec), length_(length), parts_(parts), start_(parts.clock.now()) {}

  RunResult run() {
    for (int64_t step = length_.first_step + 1; step <= length_.total_steps; ++step) {
      const StepReport report = one_step(step);
      const bool last = step == length_.total_steps || report.stop;
      const bool due = spec_.checkpoint.every > 0 && step % spec_.checkpoint.every == 0;
      if (due || report.stop) {
        parts_.strategy.consensus();
        parts_.save_checkpoint(step);
      }
      if (parts_.test != nullptr && (last || step % length_.steps_per_epoch == 0)) evaluate_now(step);
      if (report.stop) {
        result_.interrupted = true;
        break;
      }
    }
    return summary();
  }

 private:
  StepReport one_step(int64_t step) {
    const Nanoseconds begin = parts_.clock.now();
    const double waited_before = parts_.loader.waited_s();
    const uint64_t sent_before = group_sent();
    const Batch batch = parts_.loader.next();
    const ScheduleLength schedule{length_.total_steps, length_.steps_per_epoch, spec_.train.global_batch};
    const double lr = learning_rate(spec_.optimizer.lr, spec_.schedule, schedule, step - 1);
    parts_.strategy.begin_step({step, lr, parts_.stop.load(std::memory_order_relaxed)});
    parts_.strategy.forward_backward(batch);
    const StepReport report = parts_.strategy.update();

    StepDone done;
    done.step_s = to_seconds(parts_.clock.now() - begin);
    times_.add(done.step_s);
    losses_.push_back(report.loss);
    if (losses_.size() > kLossWindow) losses_.pop_front();
    done.step = result_.steps = step;
    done.epoch = static_cast<double>(step) / static_cast<double>(length_.steps_per_epoch);
    done.loss = report.loss;
    done.lr = lr;
    done.samples_per_s = static_cast<double>(spec_.train.global_batch) / times_.recent();
    done.compute_s = report.compute_s;
    done.exposed_comm_s = report.exposed_comm_s;
    done.data_wait_s = parts_.loader.waited_s() - waited_before;
    done.slowest_rank = report.slowest_rank;
    done.eta_s = times_.recent() * static_cast<double>(length_.total_steps - step);
    result_.compute_s += done.compute_s;
    result_.exposed_comm_s += done.exposed_comm_s;
    result_.data_wait_s += done.data_wait_s;
    bytes_sent_ += report.bytes_sent;
    step_sent_ += report.bytes_sent + group_sent() - sent_before;
    parts_.sink.emit(done);
    return report;
  }

  void evaluate_now(int64_t step) {
    parts_.strategy.consensus();
    Group& sharers = parts_.evaluators != nullptr ? *parts_.evaluators : parts_.group;
    const int64_t batch = spec_.train.eval_batch > 0
                              ? spec_.train.eval_batch
                              : std::max<int64_t>(1, spec_.train.global_batch / sharers.size());
    const EvalDone done = evaluate(parts_.evaluated, *parts_.test, batch, sharers, step);
    result_.test_loss = done.loss;
    result_.test_accuracy = done.accuracy;
    parts_.sink.emit(done);
  }

  RunResult summary() {
    result_.model = spec_.model.name;
    result_.exchange = spec_.exchange.name;
    if (parts_.fingerprint) result_.strategy = parts_.fingerprint();
    result_.ranks = parts_.group.size();
    result_.params = parameter_count(parts_.evaluated);
    result_.wall_s = to_seconds(parts_.clock.now() - start_);
    const bool even = spec_.exchange.name == "all-reduce" || spec_.exchange.name == "central";
    const double step_s = even ? times_.overall() : times_.mean();
    result_.samples_per_s = step_s > 0 ? static_cast<double>(spec_.train.global_batch) / step_s : 0;
    if (!losses_.empty()) {
      result_.train_loss =
          std::accumulate(losses_.begin(), losses_.end(), 0.0) / static_cast<double>(losses_.size());
    }
    add_up_ranks();
    return result_;
  }

  // Bytes and memory, of all ranks. "step_bytes": in steps alone (no evaluation, no checkpoint), by all ranks, and all that
  // servers sent. "bytes_balance": the largest of any rank or server over the mean; left out where none moved.
  void add_up_ranks() {
    constexpr size_t kNumbers = 4;
    const double own[kNumbers] = {static_cast<double>(bytes_sent_ + group_sent()), peak_rss_mb(),
                                  static_cast<double>(step_sent_), pulled()};
    std::vector<double> all(kNumbers * parts_.group.size());
    if (parts_.group.size() > 1) {
      parts_.group.all_gather(own, all.data(), kNumbers, DataType::kFp64);
    } else {
      all.assign(own, own + kNumbers);
    }
    double sent = 0, pulled = 0, most = 0;
    for (int r = 0; r < parts_.group.size(); ++r) {
      const double* of_rank = &all[kNumbers * r];
      result_.bytes_sent += static_cast<uint64_t>(of_rank[0]);
      result_.peak_rss_mb.push_back(of_rank[1]);
      sent += of_rank[2];
      pulled += of_rank[3];
      most = std::max(most, of_rank[2]);
    }
    // Servers share out the keys, so that each sends its part of what is pulled.
    const auto servers = pulled > 0 ? static_cast<double>(spec_.exchange.servers) : 0;
    if (servers > 0) most = std::max(most, pulled / servers);
    const double mean = (sent + pulled) / (parts_.group.size() + servers);
    result_.strategy["step_bytes"] = sent + pulled;
    if (mean > 0) result_.strategy["bytes_balance"] = most / mean;
  }

  // What servers sent to this rank: they are no ranks and count nothing here.
  double pulled() const {
    const auto exchanged = result_.strategy.find("bytes_exchanged");
    return exchanged == result_.strategy.end() ? 0 : exchanged->second - static_cast<double>(bytes_sent_);
  }

  uint64_t group_sent() const {
    const TrafficCount traffic = parts_.group.traffic();
    return traffic.socket_sent + traffic.window_written;
  }

  const RunSpec& spec_;
  const TrainLength& length_;
  const TrainParts& parts_;
  Nanoseconds start_;
  StepTimes times_;
  std::deque<double> losses_;
  uint64_t bytes_sent_ = 0;
  uint64_t step_sent_ = 0;  // between the begin and the end of steps
  RunResult result_;
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

RunResult train(const RunSpec& spec, const TrainLength& length, const TrainParts& parts) {
  return Loop(spec, length, parts).run();
}

}  // namespace starling
