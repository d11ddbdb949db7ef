#include "starling/net/emulation/emulated_link.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <deque>
#include <list>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "starling/base/error.h"
#include "starling/net/stream/socket.h"

namespace starling {
namespace {

constexpr Nanoseconds kLongest = std::chrono::seconds(1);
constexpr std::chrono::seconds kDrain{5};

// Sends [from, end) of `bytes`. Returns the new `from`, or nothing if the connection is gone.
std::optional<size_t> push(int fd, const std::vector<std::byte>& bytes, size_t from) {
  iovec rest{const_cast<std::byte*>(bytes.data()) + from, bytes.size() - from};
  const Moved moved = send_some(fd, {&rest, 1});
  if (moved.error != 0) return std::nullopt;
  return from + moved.bytes;
}

}  // namespace

class EmulatedLink::Loop {
 public:
  explicit Loop(const LinkLimits& limits)
      : limits_(limits),
        chunk_(chunk_bytes(limits)),
        most_queued_(static_cast<size_t>(link_bytes_per_s(limits) * limits.latency_s) + (1 << 20)),
        bucket_(link_bytes_per_s(limits)),
        in_bucket_(link_bytes_per_s(limits)),
        wake_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    if (!wake_.valid()) throw CommError(fmt::format("eventfd: {}", explain_errno(errno)));
    thread_ = std::thread([this] { run(); });
  }

  ~Loop() {
    stopping_ = true;
    ::eventfd_write(wake_.get(), 1);
    thread_.join();
  }

  UniqueFd attach(UniqueFd socket) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0)
      throw CommError(fmt::format("emulated link: {}", explain_errno(errno)));
    UniqueFd endpoint(ends[0]), near(ends[1]);
    {
      const std::lock_guard lock(mutex_);
      fresh_.emplace_back(std::move(near), std::move(socket), limits_, ++seeds_);
    }
    ::eventfd_write(wake_.get(), 1);
    return endpoint;
  }

 private:
  struct Parcel {
    Nanoseconds due;
    std::vector<std::byte> bytes;
    size_t sent = 0;
  };

  // Route is one connection: `near` leads to the endpoint, `far` to the peer.
  struct Route {
    Route(UniqueFd near_end, UniqueFd far_end, const LinkLimits& limits, uint64_t seed)
        : near(std::move(near_end)),
          far(std::move(far_end)),
          bucket(connection_bytes_per_s(limits)),
          line(limits, seed) {}

    UniqueFd near, far;
    TokenBucket bucket;
    DelayLine line;
    std::deque<Parcel> out;     // what is under way to the peer
    size_t out_bytes = 0;       // the bytes in `out`
    bool near_ended = false;    // the endpoint sends no more
    bool told_far = false;      // the peer knows that the endpoint sends no more
    std::vector<std::byte> in;  // what is under way from the peer to the endpoint
    size_t in_sent = 0;
    bool far_ended = false;
    bool told_near = false;
    bool broken = false;
  };

  void run() {
    std::optional<Deadline> end;
    while (true) {
      // The flag is read before the turn, so that the turn sees everything that was sent before the end.
      const bool stopping = stopping_;
      take_fresh();
      const Nanoseconds now = clock_.now();
      next_ = now + kLongest;
      bool moved = spent_ = in_spent_ = false;
      const bool ready = bucket_.ready_at() <= now, in_ready = in_bucket_.ready_at() <= now;
      for (Route& route : routes_) moved = carry(route, now) || moved;
      if (ready && !spent_) bucket_.idle();
      if (in_ready && !in_spent_) in_bucket_.idle();
      routes_.remove_if([](const Route& r) { return r.broken || (r.told_far && r.told_near); });
      // Another connection comes first in the next turn.
      if (!routes_.empty()) routes_.splice(routes_.end(), routes_, routes_.begin());
      if (stopping) {
        if (!end) end = deadline_in(kDrain);
        const bool drained = !moved && bucket_.ready_at() <= now &&
                             std::all_of(routes_.begin(), routes_.end(), [now](const Route& r) {
                               return r.out.empty() && r.bucket.ready_at() <= now;
                             });
        if (drained || has_passed(*end)) return;
        next_ = std::min(next_, now + Nanoseconds(std::chrono::milliseconds(10)));
      }
      if (!moved) wait();
    }
  }

  void take_fresh() {
    const std::lock_guard lock(mutex_);
    routes_.splice(routes_.end(), fresh_);
  }

  // Returns true if something moved, because more may follow at once.
  bool carry(Route& route, Nanoseconds now) {
    const bool out = send_on(route, now), in = receive_on(route, now);
    return out || in;
  }

  bool send_on(Route& route, Nanoseconds now) {
    bool moved = false;
    const Nanoseconds ready = std::max(bucket_.ready_at(), route.bucket.ready_at());
    if (!route.near_ended && route.out_bytes < most_queued_) {
      if (ready <= now)
        moved = let_go(route, now);
      else
        next_ = std::min(next_, ready);
    }
    while (!route.out.empty() && !route.broken) {
      Parcel& parcel = route.out.front();
      if (parcel.due > now) {
        next_ = std::min(next_, parcel.due);
        break;
      }
      const auto sent = push(route.far.get(), parcel.bytes, parcel.sent);
      if (!sent) {
        route.broken = true;
        return false;
      }
      const bool stuck = *sent == parcel.sent;
      parcel.sent = *sent;
      if (stuck || parcel.sent < parcel.bytes.size()) break;
      route.out_bytes -= parcel.bytes.size();
      route.out.pop_front();
      moved = true;
    }
    if (route.near_ended && route.out.empty() && !route.told_far) {
      ::shutdown(route.far.get(), SHUT_WR);
      route.told_far = true;
    }
    return moved;
  }

  // Takes a chunk from the endpoint and puts it on the link.
  bool let_go(Route& route, Nanoseconds now) {
    std::vector<std::byte> bytes(chunk_);
    iovec room{bytes.data(), bytes.size()};
    const Moved got = recv_some(route.near.get(), {&room, 1});
    if (got.ended || got.error != 0) route.near_ended = true;
    if (got.bytes == 0) {
      route.bucket.idle();
      return false;
    }
    spent_ = true;
    bytes.resize(got.bytes);
    const Nanoseconds left = std::max(bucket_.spend(now, got.bytes), route.bucket.spend(now, got.bytes));
    route.out_bytes += got.bytes;
    route.out.push_back({route.line.arrival(left, got.bytes), std::move(bytes)});
    return true;
  }

  // The peer's own link has shaped what it sends. This link shapes what several peers send at the same time.
  bool receive_on(Route& route, Nanoseconds now) {
    if (route.broken) return false;
    bool moved = false;
    const bool wants = route.in_sent == route.in.size() && !route.far_ended;
    if (wants && in_bucket_.ready_at() > now) next_ = std::min(next_, in_bucket_.ready_at());
    if (wants && in_bucket_.ready_at() <= now) {
      route.in.resize(chunk_);
      route.in_sent = 0;
      iovec room{route.in.data(), route.in.size()};
      const Moved got = recv_some(route.far.get(), {&room, 1});
      route.in.resize(got.bytes);
      if (got.ended || got.error != 0) route.far_ended = true;
      moved = got.bytes > 0;
      if (moved) {
        in_bucket_.spend(now, got.bytes);
        in_spent_ = true;
      }
    }
    if (route.in_sent < route.in.size()) {
      const auto sent = push(route.near.get(), route.in, route.in_sent);
      // If the endpoint is gone, what it has sent still leaves.
      route.in_sent = sent.value_or(route.in.size());
      if (!sent) route.far_ended = route.told_near = true;
    }
    if (route.far_ended && route.in_sent == route.in.size() && !route.told_near) {
      ::shutdown(route.near.get(), SHUT_WR);
      route.told_near = true;
    }
    return moved;
  }

  void wait() {
    const Nanoseconds now = clock_.now();
    std::vector<pollfd> polled = {{wake_.get(), POLLIN, 0}};
    for (const Route& route : routes_) {
      const bool full = route.out_bytes >= most_queued_;
      const bool due = !route.out.empty() && route.out.front().due <= now;
      const bool ready = std::max(bucket_.ready_at(), route.bucket.ready_at()) <= now;
      short near = 0, far = 0;
      if (!route.near_ended && !full && ready) near |= POLLIN;
      if (due) far |= POLLOUT;
      if (route.in_sent < route.in.size())
        near |= POLLOUT;
      else if (!route.far_ended && in_bucket_.ready_at() <= now)
        far |= POLLIN;
      // A descriptor without requested events would still report its end, again and again.
      if (near != 0) polled.push_back({route.near.get(), near, 0});
      if (far != 0) polled.push_back({route.far.get(), far, 0});
    }
    const Nanoseconds left = std::max(Nanoseconds(0), next_ - now);
    const timespec limit{static_cast<time_t>(left.count() / 1'000'000'000), left.count() % 1'000'000'000};
    ::ppoll(polled.data(), polled.size(), &limit, nullptr);
    eventfd_t value;
    ::eventfd_read(wake_.get(), &value);
  }

  const LinkLimits limits_;
  const size_t chunk_;
  const size_t most_queued_;  // how many bytes of one connection may be under way
  const SystemClock clock_;
  TokenBucket bucket_, in_bucket_;         // for what leaves, and for what arrives
  bool spent_ = false, in_spent_ = false;  // whether a bucket was used in this turn
  Nanoseconds next_{0};                    // when something is due that no descriptor reports
  std::list<Route> routes_;
  UniqueFd wake_;
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;
  std::list<Route> fresh_;  // guarded by mutex_
  uint64_t seeds_ = 0;      // guarded by mutex_
  std::thread thread_;
};

EmulatedLink::EmulatedLink(const LinkLimits& limits) : loop_(std::make_unique<Loop>(limits)) {}
EmulatedLink::~EmulatedLink() = default;

UniqueFd EmulatedLink::attach(UniqueFd socket) {
  return loop_->attach(std::move(socket));
}

}  // namespace starling
