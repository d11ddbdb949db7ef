#include "starling/parallel/pipeline/activation_outbox.h"

#include <algorithm>

namespace starling {

Outbox::Outbox(Group& group) : group_(group) {}

Outbox::~Outbox() {
  const auto unsent = [](const Message& message) { return !message.work->is_completed(); };
  if (std::any_of(messages_.begin(), messages_.end(), unsent))
    group_.abort("the pipeline ended with messages that were not sent");
  for (const Message& message : messages_) {
    try {
      message.work->wait();
    } catch (const std::exception&) {
      // post() or flush() has reported the first fault, or the pipeline ended because of another one.
    }
  }
}

void Outbox::post(const at::Tensor& contiguous, int peer, uint32_t tag) {
  std::erase_if(messages_, [](const Message& message) {
    if (!message.work->is_completed()) return false;
    message.work->wait();  // throws the error of a failed message
    return true;
  });
  messages_.push_back({contiguous, group_.send(contiguous.data_ptr(), contiguous.nbytes(), peer, tag)});
}

void Outbox::flush() {
  for (const Message& message : messages_) message.work->wait();
  messages_.clear();
}

}  // namespace starling
