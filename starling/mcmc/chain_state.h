// Writes and reads the state of a chain as one array of numbers.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <span>
#include <string>
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

  // Writes a number, or sets it to what was read. Throws Error(kCheckpoint) if what was read is not finite.
  void number(double& value) {
    if (to_) {
      to_->push_back(value);
      return;
    }
    if (from_.empty()) refuse();
    if (!std::isfinite(from_.front())) refuse_number("that is not finite");
    value = from_.front();
    from_ = from_.subspan(1);
  }
  // As number(), for a counter, which is a whole number from 0 to 2^53. Also throws Error(kCheckpoint) if
  // what was read is no such number.
  void counter(int64_t& value) {
    auto written = static_cast<double>(value);
    counter(written);
    if (!to_) value = static_cast<int64_t>(written);
  }
  // As above, for a counter that is stored as fp64.
  void counter(double& value) {
    number(value);
    if (!to_ && (value < 0 || value > 0x1p53 || value != std::floor(value)))
      refuse_number("where a counter is a whole number from 0 to 2^53");
  }
  // As numbers(), for numbers above 0.
  void positive(std::span<double> values) {
    numbers(values);
    for (const double value : values)
      if (!to_ && !(value > 0)) refuse_number("where a variance is above 0");
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
  [[noreturn]] static void refuse_number(const std::string& what) {
    throw Error(
        ErrorCode::kCheckpoint,
        fmt::format("the state of a chain has a number {}; remove the checkpoint to start anew", what));
  }

  std::vector<double>* to_ = nullptr;  // null: reads
  std::span<const double> from_;
};

}  // namespace starling
