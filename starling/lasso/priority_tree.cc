#include "starling/lasso/priority_tree.h"

#include <algorithm>

namespace starling {

PriorityTree::PriorityTree(int64_t features, double exploration)
    : features_(features), exploration_(exploration) {
  while (leaves_ < features) leaves_ *= 2;
  sums_.assign(static_cast<size_t>(2 * leaves_), 0);
}

void PriorityTree::set(int64_t feature, double progress) {
  int64_t node = leaves_ + feature;
  sums_[static_cast<size_t>(node)] = progress;
  for (node /= 2; node >= 1; node /= 2)
    sums_[static_cast<size_t>(node)] =
        sums_[static_cast<size_t>(2 * node)] + sums_[static_cast<size_t>(2 * node + 1)];
}

void PriorityTree::assign(const std::vector<double>& progress) {
  std::copy(progress.begin(), progress.end(), sums_.begin() + leaves_);
  for (size_t node = static_cast<size_t>(leaves_) - 1; node >= 1; --node)
    sums_[node] = sums_[2 * node] + sums_[2 * node + 1];
}

std::optional<int64_t> PriorityTree::draw(double u, double v) const {
  if (u < exploration_)
    return std::min(features_ - 1, static_cast<int64_t>(v * static_cast<double>(features_)));
  if (!(total() > 0)) return std::nullopt;
  double left = v * total();
  int64_t node = 1;
  while (node < leaves_) {
    node *= 2;
    const double sum = sums_[static_cast<size_t>(node)];
    // A subtree without progress is never entered, even if rounding leaves something of `left`.
    if (left >= sum && sums_[static_cast<size_t>(node + 1)] > 0) {
      left -= sum;
      ++node;
    }
  }
  return node - leaves_;
}

}  // namespace starling
