#include "starling/net/memory/endpoint.h"

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
#include "starling/net/frame.h"

namespace starling {
namespace {

struct Stored {
  MessageInfo info;
  std::vector<std::byte> bytes;
};

// One direction. The eventfd is readable whenever a message waits or the queue is closed.
class Queue {
 public:
  Queue() : ready_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    if (!ready_.valid()) throw CommError(fmt::format("eventfd: {}", std::generic_category().message(errno)));
  }

  // False when closed.
  bool push(Stored message) {
    std::lock_guard lock(mutex_);
    if (closed_) return false;
    if (messages_.empty()) signal();
    messages_.push_back(std::move(message));
    return true;
  }

  // The oldest message stays where it is until pop(): only the reader takes messages away, so the pointer is
  // good.
  const Stored* front() const {
    std::lock_guard lock(mutex_);
    return messages_.empty() ? nullptr : &messages_.front();
  }

  void pop() {
    std::lock_guard lock(mutex_);
    messages_.pop_front();
    if (messages_.empty() && !closed_) {
      eventfd_t value;
      STARLING_CHECK(::eventfd_read(ready_.get(), &value) == 0);
    }
  }

  // What was sent before is still received.
  void close() {
    std::lock_guard lock(mutex_);
    if (!closed_ && messages_.empty()) signal();
    closed_ = true;
  }

  bool closed() const {
    std::lock_guard lock(mutex_);
    return closed_;
  }

  int fd() const { return ready_.get(); }

 private:
  void signal() { STARLING_CHECK(::eventfd_write(ready_.get(), 1) == 0); }

  mutable std::mutex mutex_;
  std::deque<Stored> messages_;
  bool closed_ = false;
  UniqueFd ready_;
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
    received_ += framed_bytes(body_form(DataSecurity::kNone, info->kind), info->bytes);
    in_->pop();
    return true;
  }

  std::optional<MessageInfo> step_peek() override {
    const bool closed = in_->closed();  // asked first: what was sent before the end is received
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
