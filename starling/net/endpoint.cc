#include "starling/net/endpoint.h"

#include <fmt/format.h>

#include <cerrno>
#include <system_error>
#include <thread>
#include <vector>

#include "starling/base/check.h"
#include "starling/base/error.h"

namespace starling {
namespace {

constexpr std::chrono::milliseconds kCheckEvery{1'000};  // between checks whether the peers' hosts answer

// Takes one step of each transfer that is not done. Returns whether all are done.
bool step_all(std::span<Transfer> transfers) {
  bool all_done = true;
  for (Transfer& t : transfers) {
    if (!t.done) t.done = t.out ? t.endpoint->step_send() : t.endpoint->step_recv();
    all_done = all_done && t.done;
  }
  return all_done;
}

std::vector<pollfd> what_to_poll(std::span<const Transfer> transfers) {
  std::vector<pollfd> polled;
  for (const Transfer& t : transfers)
    if (!t.done) polled.push_back(t.out ? t.endpoint->send_poll() : pollfd{t.endpoint->poll_fd(), POLLIN, 0});
  return polled;
}

[[noreturn]] void throw_late(std::span<const Transfer> transfers) {
  for (const Transfer& t : transfers) {
    if (t.done) continue;
    const Endpoint& peer = *t.endpoint;
    if (t.out)
      throw TimeoutError(
          fmt::format("{}: {} bytes with tag {:#x} could not be sent in time: the peer does not read",
                      peer.name(), t.out->bytes(), t.out->tag),
          peer.peer_rank());
    throw TimeoutError(fmt::format("{}: {} bytes with tag {:#x} did not arrive in time", peer.name(),
                                   t.in->bytes(), t.in->tag),
                       peer.peer_rank());
  }
  throw TimeoutError("a transfer did not end in time");
}

// Waits until one of `polled` is ready, or until the deadline.
void wait_ready(std::vector<pollfd>& polled, Deadline deadline) {
  const int ready = ::poll(polled.data(), polled.size(), poll_timeout(deadline));
  if (ready < 0 && errno != EINTR)
    throw CommError(fmt::format("poll: {}", std::generic_category().message(errno)));
}

// Repeats steps of an end or a cancel until they are over. The endpoints limit how long that takes.
template <typename Step>
void repeat(const Step& step) {
  while (!step()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// Returns how many bytes the connections have moved so far, in the direction of each transfer.
uint64_t moved_by(std::span<const Transfer> transfers) {
  uint64_t sum = 0;
  for (const Transfer& t : transfers)
    sum += t.out ? t.endpoint->socket_sent() : t.endpoint->socket_received();
  return sum;
}

void move_all(std::span<Transfer> transfers, Deadline deadline) {
  for (Transfer& t : transfers) {
    if (t.out)
      t.endpoint->begin_send(*t.out);
    else
      t.endpoint->begin_recv(*t.in);
  }
  Deadline next_check = deadline_in(kCheckEvery);
  for (uint64_t moved = moved_by(transfers); !step_all(transfers);) {
    // A descriptor may be ready because of another connection (UCX), so it is no reason to wait longer. Bytes
    // that move are.
    const uint64_t now_moved = moved_by(transfers);
    if (has_passed(deadline) && now_moved == moved) throw_late(transfers);
    moved = now_moved;
    std::vector<pollfd> polled = what_to_poll(transfers);
    wait_ready(polled, std::min(deadline, next_check));
    if (!has_passed(next_check)) continue;
    for (const Transfer& t : transfers)
      if (!t.done) t.endpoint->check_alive();
    next_check = deadline_in(kCheckEvery);
  }
}

}  // namespace

Endpoint::~Endpoint() {
  wipe(shared_secret_);
}

void transfer_all(std::span<Transfer> transfers, Deadline deadline) {
  for (Transfer& t : transfers) {
    STARLING_CHECK(t.out.has_value() != t.in.has_value(), "a Transfer must either send or receive");
    t.done = false;
  }
  try {
    move_all(transfers, deadline);
  } catch (...) {
    cancel_all(transfers);
    throw;
  }
}

void cancel_all(std::span<const Transfer> transfers) {
  repeat([&] {
    bool all = true;
    for (const Transfer& t : transfers) {
      if (t.done) continue;
      const bool over = t.out ? t.endpoint->step_cancel_send() : t.endpoint->step_cancel_recv();
      all = over && all;
    }
    return all;
  });
}

std::vector<Endpoint*> all_of(std::span<const std::unique_ptr<Endpoint>> endpoints) {
  std::vector<Endpoint*> all;
  for (const auto& endpoint : endpoints)
    if (endpoint) all.push_back(endpoint.get());
  return all;
}

void end_all(std::span<Endpoint* const> endpoints) {
  repeat([&] {
    bool all = true;
    for (Endpoint* endpoint : endpoints) all = endpoint->step_end() && all;
    return all;
  });
}

void exchange(Endpoint& to, const Outgoing& out, Endpoint& from, const Incoming& in, Deadline deadline) {
  Transfer both[2] = {{&to, out, std::nullopt}, {&from, std::nullopt, in}};
  transfer_all(both, deadline);
}

void Endpoint::send(const Outgoing& message, Deadline deadline) {
  Transfer one[1] = {{this, message, std::nullopt}};
  transfer_all(one, deadline);
}

void Endpoint::recv(const Incoming& message, Deadline deadline) {
  Transfer one[1] = {{this, std::nullopt, message}};
  transfer_all(one, deadline);
}

void Endpoint::cancel_send() {
  repeat([this] { return step_cancel_send(); });
}

void Endpoint::cancel_recv() {
  repeat([this] { return step_cancel_recv(); });
}

void Endpoint::exchange(const Outgoing& out, const Incoming& in, Deadline deadline) {
  starling::exchange(*this, out, *this, in, deadline);
}

MessageInfo Endpoint::peek(Deadline deadline) {
  for (;;) {
    if (auto info = step_peek()) return *info;
    if (has_passed(deadline))
      throw TimeoutError(fmt::format("{}: no message arrived in time", name()), rank_);
    std::vector<pollfd> polled = {{poll_fd(), POLLIN, 0}};
    wait_ready(polled, std::min(deadline, deadline_in(kCheckEvery)));
  }
}

void Endpoint::set_peer_rank(int rank, const std::string& host) {
  rank_ = rank;
  name_ = fmt::format("rank {} ({})", rank, host);
}

}  // namespace starling
