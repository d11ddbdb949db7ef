// Outbox keeps the messages that a rank has started to send. So no send of the pipeline waits for its
// receiver (Delivery::kPosted in plan/schedule_check.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "starling/comm/group.h"

namespace starling {

// Only one thread at a time may use an outbox. The group must outlive it.
class Outbox {
 public:
  // Makes an empty outbox.
  explicit Outbox(Group& group);
  // Waits for unsent messages. They exist only after a fault. The destructor aborts the group then, which
  // ends the wait.
  ~Outbox();
  Outbox(const Outbox&) = delete;

  // Starts to send the bytes of a contiguous tensor, which must not change until they are sent. Messages to
  // one peer arrive in order. Throws the error of an earlier message that failed.
  void post(const at::Tensor& contiguous, int peer, uint32_t tag);
  // Waits until all messages are sent. Throws the error of a message that failed.
  void flush();

 private:
  struct Message {
    at::Tensor tensor;  // the work borrows its memory
    WorkPtr work;
  };
  Group& group_;
  std::vector<Message> messages_;  // in the order of post(), which removes those that are sent
};

}  // namespace starling
