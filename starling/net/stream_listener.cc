#include "starling/net/stream_listener.h"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <deque>

#include "starling/base/check.h"
#include "starling/base/error.h"
#include "starling/net/socket.h"
#include "starling/net/stream_endpoint.h"

namespace starling {
namespace {

class StreamListener final : public Listener {
 public:
  StreamListener(const SocketAddress& address, const JobIdentity& identity, AdmissionLimits limits)
      : socket_(listen_at(address)),
        bound_(local_address(socket_.get())),
        wake_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
        pending_(identity, limits) {
    if (!wake_.valid()) throw CommError("eventfd: " + explain_errno(errno));
  }

  ~StreamListener() override {
    if (bound_.family() == AF_UNIX && bound_.text()[0] == '/') ::unlink(bound_.text().c_str());
  }

  std::unique_ptr<Endpoint> accept(Deadline deadline) override {
    for (;;) {
      if (stopped_) throw CommError(address() + ": the listener was shut down");
      pending_.accept_all(socket_.get());
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
  void wait(Deadline deadline) {
    std::vector<pollfd> polled = {{wake_.get(), POLLIN, 0}};
    if (pending_.has_room()) polled.push_back({socket_.get(), POLLIN, 0});
    pending_.append_to(polled);
    if (::poll(polled.data(), polled.size(), poll_timeout(deadline)) < 0 && errno != EINTR)
      throw CommError("poll: " + explain_errno(errno));
  }

  [[noreturn]] void throw_nobody() const {
    std::string message = fmt::format("{}: no peer connected in time", address());
    if (pending_.refused() > 0)
      message += fmt::format("; {} refused, the last: {}", pending_.refused(), pending_.last_refusal());
    throw TimeoutError(message);
  }

  UniqueFd socket_;
  SocketAddress bound_;
  UniqueFd wake_;
  std::atomic<bool> stopped_{false};
  PendingConnections pending_;
  std::deque<AuthenticatedSocket> ready_;
};

}  // namespace

std::unique_ptr<Listener> listen_stream(const SocketAddress& address, const JobIdentity& identity,
                                        AdmissionLimits limits) {
  return std::make_unique<StreamListener>(address, identity, limits);
}

}  // namespace starling
