#include "starling/net/memory/memory_endpoint.h"

#include <fmt/format.h>
#include <sys/eventfd.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <mutex>
#include <system_error>
#include <vector>

#include "starling/base/check.h"
#include "starling/base/error.h"
#include "starling/base/unique_fd.h"
#include "starling/net/stream/frame.h"

namespace starling {
namespace {

struct Stored {
  MessageInfo info;
  std::vector<std::byte> bytes;
};

// Queue is one direction. Its eventfd is readable while a message waits or the queue is closed. The eventfd
// is made when a thread first wants to wait, because a group of many threads has more queues than a process
// has descriptors.
class Queue {
 public:
  // Returns false if the queue is closed.
  bool push(Stored message) {
    std::lock_guard lock(mutex_);
    if (closed_) return false;
    if (messages_.empty()) signal();
    messages_.push_back(std::move(message));
    return true;
  }

  // Returns the oldest message, which stays until pop(). Only the reader removes messages, so the pointer
  // stays valid.
  const Stored* front() const {
    std::lock_guard lock(mutex_);
    return messages_.empty() ? nullptr : &messages_.front();
  }

  void pop() {
    std::lock_guard lock(mutex_);
    messages_.pop_front();
    if (messages_.empty() && !closed_ && ready_.valid()) {
      eventfd_t value;
      STARLING_CHECK(::eventfd_read(ready_.get(), &value) == 0);
    }
  }

  // Closes the queue. What was sent before is still received.
  void close() {
    std::lock_guard lock(mutex_);
    if (!closed_ && messages_.empty()) signal();
    closed_ = true;
  }

  bool closed() const {
    std::lock_guard lock(mutex_);
    return closed_;
  }

  // Errors: CommError if this process or the machine has no descriptors left.
  int fd() const {
    std::lock_guard lock(mutex_);
    if (!ready_.valid()) {
      const unsigned ready = closed_ || !messages_.empty() ? 1 : 0;
      ready_ = UniqueFd(::eventfd(ready, EFD_NONBLOCK | EFD_CLOEXEC));
      if (!ready_.valid())
        throw CommError(fmt::format("eventfd: {}; raise the limit with ulimit -n",
                                    std::generic_category().message(errno)));
    }
    return ready_.get();
  }

 private:
  void signal() {
    if (ready_.valid()) STARLING_CHECK(::eventfd_write(ready_.get(), 1) == 0);
  }

  mutable std::mutex mutex_;
  std::deque<Stored> messages_;
  bool closed_ = false;
  mutable UniqueFd ready_;
};

class MemoryEndpoint final : public Endpoint {
 public:
  MemoryEndpoint(std::shared_ptr<Queue> out, std::shared_ptr<Queue> in)
      : out_(std::move(out)), in_(std::move(in)) {}
  ~MemoryEndpoint() override { shutdown(); }

  void begin_send(const Outgoing& message) override {
    check_outgoing(message);
    Stored stored{{message.tag, message.bytes(), message.kind}, {}};
    stored.bytes.reserve(message.bytes());
    stored.bytes.insert(stored.bytes.end(), message.head.begin(), message.head.end());
    stored.bytes.insert(stored.bytes.end(), message.body.begin(), message.body.end());
    if (!out_->push(std::move(stored))) throw_gone();
    count_sent(message);
    sent_ += framed_bytes(body_form(DataSecurity::kNone, message.kind), message.bytes());
  }

  bool step_send() override { return true; }

  void begin_recv(const Incoming& message) override { incoming_ = message; }

  bool step_recv() override {
    const auto info = step_peek();
    if (!info) return false;
    check_expected(*info, incoming_, *this);
    const Stored& stored = *in_->front();
    const size_t head = incoming_.head.size();
    if (head > 0) std::memcpy(incoming_.head.data(), stored.bytes.data(), head);
    if (!incoming_.body.empty())
      std::memcpy(incoming_.body.data(), stored.bytes.data() + head, incoming_.body.size());
    count_received(incoming_);
    received_ += framed_bytes(body_form(DataSecurity::kNone, info->kind), info->bytes);
    in_->pop();
    return true;
  }

  std::optional<MessageInfo> step_peek() override {
    const bool closed = in_->closed();  // asked first, so that what was sent before the end is received
    if (const Stored* stored = in_->front()) return stored->info;
    if (closed) throw_gone();
    return std::nullopt;
  }

  int poll_fd() const override { return in_->fd(); }
  std::string peer() const override { return "memory"; }

  void shutdown() override {
    out_->close();
    in_->close();
  }

 private:
  [[noreturn]] void throw_gone() const {
    throw CommError(fmt::format("{}: connection closed", name()), peer_rank());
  }

  std::shared_ptr<Queue> out_;
  std::shared_ptr<Queue> in_;
  Incoming incoming_;
};

}  // namespace

std::pair<std::unique_ptr<Endpoint>, std::unique_ptr<Endpoint>> make_memory_endpoints() {
  auto there = std::make_shared<Queue>();
  auto back = std::make_shared<Queue>();
  return {std::make_unique<MemoryEndpoint>(there, back), std::make_unique<MemoryEndpoint>(back, there)};
}

}  // namespace starling
