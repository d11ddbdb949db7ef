// PartitionRule updates the partitions of a server shard in place of an update rule (optim/update_rule.h).
// The optimizer of a user's program becomes a PartitionRule on the servers (run/loop/torch_rule.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

namespace starling {

// One update of a partition, in place. All memory has the type of the shard.
struct PartitionUpdate {
  size_t partition = 0;           // its index in the shard
  void* parameter = nullptr;      // the same memory in each update of a partition
  void* const* states = nullptr;  // the rule's state_count() ranges, the same in each update; zeros at first
  void* gradient = nullptr;       // the mean gradient, which the update may change
  size_t count = 0;               // elements of each range
  double lr = 0;
  int64_t step = 0;  // 1 for the first update
};

// Not thread-safe.
class PartitionRule {
 public:
  virtual ~PartitionRule() = default;
  // The number of states per element.
  virtual int state_count() const = 0;
  // Makes one update. The update of an element depends on that element only.
  virtual void apply(const PartitionUpdate& update) = 0;
};

// Makes the rule of one shard.
using PartitionRuleMaker = std::function<std::unique_ptr<PartitionRule>()>;

}  // namespace starling
