#include "starling/parallel/delayed.h"

#include <chrono>
#include <thread>

namespace starling {
namespace {

// A uniform number in [0, 1) for (seed, rank, step): splitmix64.
double uniform(uint64_t seed, int rank, int64_t step) {
  uint64_t x = seed ^ (static_cast<uint64_t>(rank) << 40) ^ static_cast<uint64_t>(step);
  for (int i = 0; i < 2; ++i) {
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    x ^= x >> 31;
  }
  return static_cast<double>(x >> 11) * 0x1p-53;
}

}  // namespace

Delayed::Delayed(Strategy& inner, const Emulation& emulation, int rank, uint64_t seed, const Clock& clock)
    : inner_(inner), emulation_(emulation), rank_(rank), seed_(seed), clock_(clock) {}

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
  inner_.begin_step(step);
}

double Delayed::forward_backward(const Batch& batch) {
  const Nanoseconds start = clock_.now();
  const double loss = inner_.forward_backward(batch);
  slept_s_ = to_seconds(clock_.now() - start) * (factor(step_) - 1);
  if (slept_s_ > 0) std::this_thread::sleep_for(std::chrono::duration<double>(slept_s_));
  return loss;
}

StepReport Delayed::update() {
  StepReport report = inner_.update();
  report.compute_s += slept_s_;  // the rank stands for one that computes so long
  return report;
}

}  // namespace starling
