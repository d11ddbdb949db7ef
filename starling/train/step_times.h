// StepTimes keeps the seconds of every step of a run. Throughput and the remaining time are computed from
// their medians.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

namespace starling {

class StepTimes {
 public:
  // The number of first steps that do not count, because caches are cold and choices are still being made.
  static constexpr size_t kWarmUp = 3;
  void add(double seconds);
  // Returns the median of the last 64 steps, for the progress line. Returns 0 before the first step.
  double recent() const;
  // Returns the median of all steps after the first kWarmUp, or of all steps if there are no more.
  double overall() const;
  // Returns the mean of the steps that overall() uses. If only some steps exchange, the median would ignore
  // them.
  double mean() const;

 private:
  std::vector<double> all_;
};

}  // namespace starling
