// Step times of a run: the medians that throughput and the time to the end are computed from.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

namespace starling {

class StepTimes {
 public:
  // Steps that do not count: caches are cold and choices are still being made.
  static constexpr size_t kWarmUp = 3;
  void add(double seconds);
  // Median over the last 64 steps, for the progress line; 0 before the first.
  double recent() const;
  // Median of all but the first kWarmUp steps (of all, if there are no more).
  double overall() const;
  // Mean of the same steps: where only some steps exchange, the median would leave those out.
  double mean() const;

 private:
  std::vector<double> all_;
};

}  // namespace starling
