#include "starling/parallel/delayed.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "starling/base/keyed_random.h"

namespace starling {
namespace {

constexpr size_t kWarmUp = 3;  // the first steps do not count, because caches are cold

// Returns a uniform number in [0, 1) for (seed, rank, step).
double uniform(uint64_t seed, int rank, int64_t step) {
  const uint64_t x = seed ^ (static_cast<uint64_t>(rank) << 40) ^ static_cast<uint64_t>(step);
  return uniform_of(mix64(mix64(x + kGolden) + kGolden));
}

}  // namespace

Delayed::Delayed(Strategy& inner, const Emulation& emulation, int rank, uint64_t seed, const Clock& clock,
                 double equal_share)
    : inner_(inner),
      emulation_(emulation),
      rank_(rank),
      seed_(seed),
      clock_(clock),
      equal_share_(equal_share) {}

double Delayed::factor(int64_t step) const {
  double f = 1;
  for (const auto& slow : emulation_.slow_ranks) {
    if (slow.rank == rank_) f *= slow.factor;
  }
  if (emulation_.jitter_share > 0 && uniform(seed_, rank_, step) < emulation_.jitter_share)
    f *= emulation_.jitter_factor;
  return f;
}

void Delayed::begin_step(const Step& step) {
  step_ = step.index;
  steps_.push_back({to_seconds(clock_.now())});
  inner_.begin_step(step);
}

double Delayed::forward_backward(const Batch& batch) {
  const Nanoseconds start = clock_.now();
  const double loss = inner_.forward_backward(batch);
  const double took = to_seconds(clock_.now() - start);
  const double shares = equal_share_ > 0 ? static_cast<double>(batch.size()) / equal_share_ : 1;
  const double compute_s = emulation_.compute_s * shares;
  slept_s_ = std::max(took, compute_s) * factor(step_) - took;
  if (slept_s_ > 0) std::this_thread::sleep_for(std::chrono::duration<double>(slept_s_));
  steps_.back().compute_s = to_seconds(clock_.now() - start);
  steps_.back().overrun = compute_s > 0 && took > compute_s ? 1 : 0;
  return loss;
}

StepReport Delayed::update() {
  StepReport report = inner_.update();
  report.compute_s += slept_s_;  // the sleep counts as computation
  steps_.back().exposed_s = report.exposed_comm_s;
  return report;
}

std::map<std::string, double> Delayed::times(Group& group) const {
  double count = static_cast<double>(steps_.size());
  if (group.size() > 1) all_reduce(group, &count, 1, DataType::kFp64, ReduceOp::kMin);
  const size_t first = std::min<size_t>(kWarmUp, static_cast<size_t>(count));
  const size_t steps = static_cast<size_t>(count) - first;
  if (steps < 2) return {};
  std::vector<double> compute, longest;
  for (size_t i = 0; i < steps; ++i) compute.push_back(steps_[first + i].compute_s);
  longest = compute;
  if (group.size() > 1) all_reduce(group, longest.data(), steps, DataType::kFp64, ReduceOp::kMax);
  const double whole =
      (steps_[first + steps - 1].begin_s - steps_[first].begin_s) / static_cast<double>(steps - 1);
  enum { kCompute, kWaiting, kExchange, kOverrun, kStep, kRate, kSums };
  double sums[kSums] = {};
  for (size_t i = 0; i < steps; ++i) {
    const StepTime& step = steps_[first + i];
    const double waiting = std::min(step.exposed_s, longest[i] - compute[i]);
    sums[kCompute] += compute[i] / static_cast<double>(steps);
    sums[kWaiting] += waiting / static_cast<double>(steps);
    sums[kExchange] += (step.exposed_s - waiting) / static_cast<double>(steps);
    sums[kOverrun] += step.overrun / static_cast<double>(steps);
  }
  sums[kStep] = whole;
  sums[kRate] = 1 / whole;
  if (group.size() > 1) all_reduce(group, sums, kSums, DataType::kFp64, ReduceOp::kSum);
  const double ranks = group.size();
  return {{"step_compute_s", sums[kCompute] / ranks},
          {"step_waiting_s", sums[kWaiting] / ranks},
          {"step_exchange_s", sums[kExchange] / ranks},
          {"step_s", sums[kStep] / ranks},
          {"rank_steps_per_s", sums[kRate]},
          {"emulation_overrun", sums[kOverrun] / ranks}};
}

}  // namespace starling
