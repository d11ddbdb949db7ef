#include "starling/parallel/replica/message_stats.h"

namespace starling {

void tell_messages(Group& group, double sent, double plain, StrategyStats& stats) {
  double sum = sent, largest = sent;
  if (group.size() > 1) {
    all_reduce(group, &sum, 1, DataType::kFp64, ReduceOp::kSum);
    all_reduce(group, &largest, 1, DataType::kFp64, ReduceOp::kMax);
  }
  const double mean = sum / group.size();
  stats["message_bytes"] = mean;
  if (mean > 0) stats["compression"] = plain / mean;
  stats["message_balance"] = mean > 0 ? largest / mean : 1;
}

}  // namespace starling
