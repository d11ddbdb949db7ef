#include "starling/net/endpoint.h"

#include <fmt/format.h>

#include <cerrno>
#include <system_error>
#include <vector>

#include "starling/base/check.h"
#include "starling/base/error.h"

namespace starling {
namespace {

// One step of each transfer that is not done. True when all are.
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
          fmt::format("{}: {} bytes with tag {:#x} could not be sent in time (it does not read)", peer.name(),
                      t.out->bytes(), t.out->tag),
          peer.peer_rank());
    throw TimeoutError(fmt::format("{}: {} bytes with tag {:#x} did not arrive in time", peer.name(),
                                   t.in->bytes(), t.in->tag),
                       peer.peer_rank());
  }
  throw TimeoutError("a transfer did not end in time");
}

// Waits until one of `polled` is ready; false when the deadline has passed.
bool wait_ready(std::vector<pollfd>& polled, Deadline deadline) {
  for (;;) {
    const int ready = ::poll(polled.data(), polled.size(), poll_timeout(deadline));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR)
      throw CommError(fmt::format("poll: {}", std::generic_category().message(errno)));
    if (has_passed(deadline)) return false;
  }
}

void move_all(std::span<Transfer> transfers, Deadline deadline) {
  for (Transfer& t : transfers) {
    if (t.out)
      t.endpoint->begin_send(*t.out);
    else
      t.endpoint->begin_recv(*t.in);
  }
  while (!step_all(transfers)) {
    std::vector<pollfd> polled = what_to_poll(transfers);
    while (!wait_ready(polled, std::min(deadline, deadline_in(std::chrono::seconds(1))))) {
      for (const Transfer& t : transfers)
        if (!t.done) t.endpoint->check_alive();
      if (has_passed(deadline)) throw_late(transfers);
    }
  }
}

}  // namespace

void transfer_all(std::span<Transfer> transfers, Deadline deadline) {
  for (Transfer& t : transfers) {
    STARLING_CHECK(t.out.has_value() != t.in.has_value(), "a transfer sends or receives");
    t.done = false;
  }
  try {
    move_all(transfers, deadline);
  } catch (...) {
    for (const Transfer& t : transfers) {
      if (t.done) continue;
      if (t.out)
        t.endpoint->cancel_send();
      else
        t.endpoint->cancel_recv();
    }
    throw;
  }
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

void Endpoint::exchange(const Outgoing& out, const Incoming& in, Deadline deadline) {
  starling::exchange(*this, out, *this, in, deadline);
}

MessageInfo Endpoint::peek(Deadline deadline) {
  for (;;) {
    if (auto info = step_peek()) return *info;
    std::vector<pollfd> polled = {{poll_fd(), POLLIN, 0}};
    if (!wait_ready(polled, std::min(deadline, deadline_in(std::chrono::seconds(1)))) && has_passed(deadline))
      throw TimeoutError(fmt::format("{}: no message arrived in time", name()), rank_);
  }
}

void Endpoint::set_peer_rank(int rank, const std::string& host) {
  rank_ = rank;
  name_ = fmt::format("rank {} ({})", rank, host);
}

}  // namespace starling
