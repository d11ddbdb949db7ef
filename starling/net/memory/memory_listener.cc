#include "starling/net/memory/memory_listener.h"

#include <fmt/format.h>

#include "starling/base/error.h"
#include "starling/net/memory/memory_endpoint.h"

namespace starling {

class MemoryNetwork::MemoryListener final : public Listener {
 public:
  MemoryListener(std::string address, std::shared_ptr<Backlog> backlog)
      : address_(std::move(address)), backlog_(std::move(backlog)) {}

  ~MemoryListener() override {
    std::lock_guard lock(backlog_->mutex);
    backlog_->closed = true;
    backlog_->waiting.clear();
  }

  std::unique_ptr<Endpoint> accept(Deadline deadline) override {
    std::unique_lock lock(backlog_->mutex);
    const auto ready = [&] { return backlog_->stopped || !backlog_->waiting.empty(); };
    if (!backlog_->changed.wait_until(lock, deadline, ready))
      throw TimeoutError(fmt::format("{}: no peer connected in time", address_));
    if (backlog_->stopped) throw CommError(address_ + ": the listener was shut down");
    auto first = std::move(backlog_->waiting.front());
    backlog_->waiting.pop_front();
    return first;
  }

  std::string address() const override { return address_; }

  void shutdown() override {
    std::lock_guard lock(backlog_->mutex);
    backlog_->stopped = true;
    backlog_->changed.notify_all();
  }

 private:
  std::string address_;
  std::shared_ptr<Backlog> backlog_;
};

std::unique_ptr<Listener> MemoryNetwork::listen(const std::string& address) {
  std::lock_guard lock(mutex_);
  std::shared_ptr<Backlog>& backlog = backlogs_[address];
  if (backlog) {
    std::lock_guard held(backlog->mutex);
    if (!backlog->closed) throw CommError(address + ": the address is in use");
  }
  backlog = std::make_shared<Backlog>();
  return std::make_unique<MemoryListener>(address, backlog);
}

std::unique_ptr<Endpoint> MemoryNetwork::connect(const std::string& address) {
  std::shared_ptr<Backlog> backlog;
  {
    std::lock_guard lock(mutex_);
    const auto found = backlogs_.find(address);
    if (found != backlogs_.end()) backlog = found->second;
  }
  auto [here, there] = make_memory_endpoints();
  if (backlog) {
    std::lock_guard lock(backlog->mutex);
    if (!backlog->closed && !backlog->stopped) {
      backlog->waiting.push_back(std::move(there));
      backlog->changed.notify_all();
      return std::move(here);
    }
  }
  throw CommError(address + ": connection refused: nobody listens there");
}

}  // namespace starling
