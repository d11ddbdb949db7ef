// Sums over ranks whose bits depend on the ranks' numbers alone: each rank gathers the numbers of all ranks
// and adds them in rank order.
#pragma once

#include <span>
#include <vector>

#include "starling/comm/group.h"

namespace starling {

// RankSums adds numbers over the ranks. n numbers on p ranks cost 8 p (p − 1) n bytes over all ranks.
class RankSums {
 public:
  // The group must outlive this object.
  explicit RankSums(Group& group) : group_(group) {}
  // Replaces each number by its sum over the ranks. All ranks get equal bits. Collective. Errors: CommError.
  void add(std::span<double> numbers) {
    const auto ranks = static_cast<size_t>(group_.size());
    if (ranks == 1 || numbers.empty()) return;
    gathered_.resize(ranks * numbers.size());
    all_gather(group_, numbers.data(), gathered_.data(), numbers.size(), DataType::kFp64);
    for (size_t i = 0; i < numbers.size(); ++i) {
      double sum = gathered_[i];
      for (size_t rank = 1; rank < ranks; ++rank) sum += gathered_[rank * numbers.size() + i];
      numbers[i] = sum;
    }
  }

 private:
  Group& group_;
  std::vector<double> gathered_;  // the numbers of one rank after another
};

}  // namespace starling
