#include "starling/net/stream/stream_listener.h"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>

#include "starling/base/check.h"
#include "starling/base/error.h"
#include "starling/net/stream/socket.h"
#include "starling/net/stream/stream_endpoint.h"

namespace starling {
namespace {

constexpr std::chrono::milliseconds kPause{100};  // after a lack of descriptors

class StreamListener final : public Listener {
 public:
  StreamListener(const SocketAddress& address, const JobIdentity& identity, const Parties& parties,
                 AdmissionLimits limits)
      : socket_(listen_at(address)),
        bound_(local_address(socket_.get())),
        wake_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
        pending_(identity, parties, limits) {
    if (!wake_.valid()) throw CommError("eventfd: " + explain_errno(errno));
  }

  ~StreamListener() override {
    if (bound_.family() == AF_UNIX && bound_.text()[0] == '/') ::unlink(bound_.text().c_str());
  }

  std::unique_ptr<Endpoint> accept(Deadline deadline) override {
    for (;;) {
      if (stopped_) throw CommError(address() + ": the listener was shut down");
      accept_pending();
      for (auto& socket : pending_.advance()) ready_.push_back(std::move(socket));
      if (!ready_.empty()) {
        AuthenticatedSocket first = std::move(ready_.front());
        ready_.pop_front();
        return make_stream_endpoint(std::move(first.socket), first.keys);
      }
      if (has_passed(deadline)) throw_nobody();
      wait(pending_.earliest_deadline(deadline));
    }
  }

  std::string address() const override { return bound_.text(); }

  void shutdown() override {
    stopped_ = true;
    STARLING_CHECK(::eventfd_write(wake_.get(), 1) == 0);
  }

 private:
  // If the process has no descriptors left, the waiting connections stay in the kernel's queue. Other
  // descriptors of this process may be closed soon, so accept() tries again after a pause.
  void accept_pending() {
    paused_ = false;
    try {
      pending_.accept_all(socket_.get());
      trouble_.clear();
    } catch (const CommError& error) {
      paused_ = true;
      trouble_ = error.what();
    }
  }

  void wait(Deadline deadline) {
    std::vector<pollfd> polled = {{wake_.get(), POLLIN, 0}};
    if (paused_) deadline = std::min(deadline, deadline_in(kPause));
    if (pending_.has_room() && !paused_) polled.push_back({socket_.get(), POLLIN, 0});
    pending_.append_to(polled);
    if (::poll(polled.data(), polled.size(), poll_timeout(deadline)) < 0 && errno != EINTR)
      throw CommError("poll: " + explain_errno(errno));
  }

  [[noreturn]] void throw_nobody() const {
    std::string message = fmt::format("{}: no peer connected in time", address());
    if (pending_.refused() > 0)
      message += fmt::format("; {} refused, the last: {}", pending_.refused(), pending_.last_refusal());
    if (!trouble_.empty()) message += "; " + trouble_;
    throw TimeoutError(message);
  }

  UniqueFd socket_;
  SocketAddress bound_;
  UniqueFd wake_;
  std::atomic<bool> stopped_{false};
  PendingConnections pending_;
  std::deque<AuthenticatedSocket> ready_;
  bool paused_ = false;
  std::string trouble_;  // why connections could not be accepted; empty: they could
};

}  // namespace

std::unique_ptr<Listener> listen_stream(const SocketAddress& address, const JobIdentity& identity,
                                        const Parties& parties, AdmissionLimits limits) {
  return std::make_unique<StreamListener>(address, identity, parties, limits);
}

std::unique_ptr<Listener> tcp_listen(const std::string& address, const JobIdentity& identity,
                                     const Parties& parties, AdmissionLimits limits) {
  return listen_stream(resolve(parse_host_port(address)), identity, parties, limits);
}

std::unique_ptr<Listener> unix_listen(const std::string& address, const JobIdentity& identity,
                                      const Parties& parties, AdmissionLimits limits) {
  return listen_stream(unix_address(address), identity, parties, limits);
}

}  // namespace starling
