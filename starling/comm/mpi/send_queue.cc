#include "starling/comm/mpi/send_queue.h"

#include <utility>

namespace starling {
namespace {

constexpr std::chrono::microseconds kTestInterval{100};

}  // namespace

MpiOutbox::MpiOutbox(MpiCommunicator& communicator, std::function<void(const std::string&)> fail)
    : communicator_(communicator), fail_(std::move(fail)) {}

MpiOutbox::~MpiOutbox() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void MpiOutbox::send(const std::byte* data, size_t bytes, int peer, int tag) {
  std::vector<std::byte> copy(data, data + bytes);
  const std::lock_guard lock(mutex_);
  Message& message = messages_.emplace_back(Message{std::move(copy), nullptr});
  message.under_way = communicator_.send(message.bytes.data(), bytes, peer, tag);
  drop_gone();
  if (messages_.empty()) return;
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  changed_.notify_all();
}

// Drops the messages that have been sent. The caller holds the mutex.
void MpiOutbox::drop_gone() {
  messages_.remove_if([&](const Message& message) {
    if (!message.under_way->test()) return false;
    if (!message.under_way->fault().empty()) fail_(message.under_way->fault());
    return true;
  });
}

void MpiOutbox::run() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    changed_.wait(lock, [&] { return stop_ || !messages_.empty(); });
    drop_gone();
    if (messages_.empty()) {
      changed_.notify_all();
    } else {
      changed_.wait_for(lock, kTestInterval, [&] { return stop_; });
    }
  }
}

bool MpiOutbox::drain(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, timeout, [&] { return messages_.empty(); });
}

}  // namespace starling
