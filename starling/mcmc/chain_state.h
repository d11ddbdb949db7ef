// Writes and reads the state of a chain as one array of numbers.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "starling/base/error.h"

namespace starling {

// ChainState lists what a state holds. The list is written or read in one order by the same code. Counters
// below 2^53 are exact.
class ChainState {
 public:
  // Writes into a state.
  explicit ChainState(std::vector<double>& to) : to_(&to) {}
  // Reads from a state.
  explicit ChainState(std::span<const double> from) : from_(from) {}

  // Writes a number, or sets it to what was read.
  void number(double& value) {
    if (to_) {
      to_->push_back(value);
      return;
    }
    if (from_.empty()) refuse();
    value = from_.front();
    from_ = from_.subspan(1);
  }
  // As number(), for a counter, which is a whole number from 0 to 2^53. Also throws Error(kCheckpoint) if
  // what was read is no such number.
  void counter(int64_t& value) {
    auto written = static_cast<double>(value);
    number(written);
    if (to_) return;
    // NaN fails the first comparison. The conversion of a number beyond int64_t is undefined.
    if (!(written >= 0 && written <= 0x1p53) || written != std::floor(written))
      throw Error(ErrorCode::kCheckpoint,
                  "the state of a chain has a counter that is no whole number from 0 to 2^53; remove the "
                  "checkpoint to start anew");
    value = static_cast<int64_t>(written);
  }
  // As number(), for each number of a list, whose length stays.
  void numbers(std::span<double> values) {
    for (double& value : values) number(value);
  }
  // Throws Error(kCheckpoint) if a read state has more numbers.
  void end() const {
    if (!from_.empty()) refuse();
  }

 private:
  [[noreturn]] static void refuse() {
    throw Error(
        ErrorCode::kCheckpoint,
        "the state of a chain has another number of elements than this chain; remove the checkpoint to "
        "start anew");
  }

  std::vector<double>* to_ = nullptr;  // null: reads
  std::span<const double> from_;
};

}  // namespace starling
