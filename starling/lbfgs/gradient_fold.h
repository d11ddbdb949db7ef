// GradientFold sums the portions of a gradient in the order of their numbers, whatever the order of their
// arrival. The sum is therefore a function of the portions alone.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

namespace starling {

// Pure logic. Not thread-safe. It holds portions that arrive before an earlier one.
class GradientFold {
 public:
  // Starts a sum of `portions` vectors with `size` elements each.
  void begin(int portions, size_t size);
  // Adds a portion. Errors: CommError if the portion was added before, or has another size.
  void add(int portion, std::vector<double> values);
  // Returns true if all portions are in the sum.
  bool done() const { return next_ == static_cast<int>(early_.size()); }
  // Returns the sum of the portions so far, in order.
  const std::vector<double>& sum() const { return sum_; }

 private:
  std::vector<std::optional<std::vector<double>>> early_;
  std::vector<double> sum_;
  int next_ = 0;  // the first portion that is not in the sum
};

}  // namespace starling
