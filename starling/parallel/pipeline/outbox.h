// Outbox: messages that travel while their sender goes on computing. Group::send of a long message waits for its receiver;
// here a thread a peer does that waiting, so that to the pipeline no send ever waits (Delivery::kPosted of
// plan/schedule_check.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>

#include "starling/comm/group.h"

namespace starling {

// One thread posts. The group outlives this.
class Outbox {
 public:
  explicit Outbox(Group& group);
  // What is not yet sent is given up, which only happens after a fault: the group is aborted then.
  ~Outbox();
  Outbox(const Outbox&) = delete;

  // The bytes of a contiguous tensor, which must not change until they are sent. Messages to a peer arrive in order.
  // Throws what an earlier message to that peer met.
  void post(const at::Tensor& contiguous, int peer, uint32_t tag);
  // Waits until all is sent. Throws what one of them met.
  void flush();

 private:
  struct Line;
  Group& group_;
  std::map<int, std::unique_ptr<Line>> lines_;  // by peer
};

}  // namespace starling
