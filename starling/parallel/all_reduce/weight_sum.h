// WeightSum adds the weights of a weighted loss over all threads of all ranks, between forward and backward.
#pragma once

#include <condition_variable>
#include <exception>
#include <mutex>

#include "starling/comm/group.h"

namespace starling {

// The weight of one step. Thread-safe.
class WeightSum {
 public:
  // `threads` threads of this rank call total() in each step. The group must outlive this object.
  WeightSum(Group& group, int threads) : group_(group), threads_(threads) {}

  // Begins a step. No thread may be in total().
  void begin();
  // Adds the weight of a thread and returns the weight of all threads of all ranks. Waits for the remaining
  // threads of this rank; the last one calls the group. Rethrows the error of fail() and of the group.
  double total(double weight);
  // Ends the waits of this step: a thread has failed and will not call total().
  void fail(std::exception_ptr error);

 private:
  Group& group_;
  const int threads_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int missing_ = 0;
  double sum_ = 0;
  bool done_ = false;
  std::exception_ptr error_;
};

}  // namespace starling
