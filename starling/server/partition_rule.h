// SlotRule updates the partitions of a server shard in place of an update rule (optim/update_rule.h). The
// optimizer of a user's program becomes one on the servers (run/torch_rule.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

namespace starling {

// One update of a partition, in place. All memory has the type of the shard.
struct SlotUpdate {
  size_t slot = 0;
  void* parameter = nullptr;      // the same memory in each update of a slot
  void* const* states = nullptr;  // SlotRule::state_count() ranges, the same in each update; zeros at first
  void* gradient = nullptr;       // the mean gradient, which the update may change
  size_t count = 0;               // elements of each range
  double lr = 0;
  int64_t step = 0;  // 1 for the first update
};

// Not thread-safe.
class SlotRule {
 public:
  virtual ~SlotRule() = default;
  // The number of states per element.
  virtual int state_count() const = 0;
  // Makes one update. The update of an element depends on that element only.
  virtual void apply(const SlotUpdate& update) = 0;
};

// Makes the rule of one shard.
using SlotRuleMaker = std::function<std::unique_ptr<SlotRule>()>;

}  // namespace starling
