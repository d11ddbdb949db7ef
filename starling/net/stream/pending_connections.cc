#include "starling/net/stream/pending_connections.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "starling/base/error.h"
#include "starling/net/stream/socket.h"
#include "starling/net/stream/stream_endpoint.h"

namespace starling {

PendingConnections::PendingConnections(const JobIdentity& identity, Parties parties, AdmissionLimits limits)
    : identity_(identity),
      parties_(std::move(parties)),
      limits_(limits),
      settings_(make_tls_settings(HandshakeRole::kServer)) {
  check_job_id(identity);
}

void PendingConnections::refuse(const std::string& peer, const std::string& why) {
  ++refused_;
  last_refusal_ = fmt::format("{}: {}", peer, why);
}

void PendingConnections::accept_all(int listener) {
  while (has_room()) {
    auto socket = accept_from(listener);
    if (!socket) return;
    if (full()) {
      refuse(pending_.front().peer, fmt::format("no handshake within {} ms while {} connections wait",
                                                limits_.grace.count(), pending_.size()));
      pending_.erase(pending_.begin());
    }
    try {
      check_same_user(socket->get());
      set_stream_options(socket->get(), local_address(socket->get()), identity_.dead_after);
      std::string peer = describe_peer(socket->get());
      Handshake handshake(HandshakeRole::kServer, identity_on(socket->get(), identity_), parties_, settings_);
      pending_.push_back(
          {std::move(*socket), std::move(peer), std::move(handshake), std::chrono::steady_clock::now()});
    } catch (const CommError& e) {
      refuse("a connection", e.what());  // the peer is gone already, or belongs to another user
    }
  }
}

void PendingConnections::append_to(std::vector<pollfd>& polled) const {
  for (const Pending& p : pending_)
    polled.push_back(
        {p.socket.get(), static_cast<short>(p.handshake.output().empty() ? POLLIN : POLLOUT), 0});
}

Deadline PendingConnections::earliest_deadline(Deadline otherwise) const {
  if (pending_.empty()) return otherwise;
  const Deadline oldest = pending_.front().since;
  if (!has_room()) otherwise = std::min(otherwise, oldest + limits_.grace);
  return std::min(otherwise, oldest + limits_.timeout);
}

void PendingConnections::send_output(Pending& p) {
  std::string output = p.handshake.output();
  while (p.sent < output.size()) {
    iovec rest{output.data() + p.sent, output.size() - p.sent};
    const Moved moved = send_some(p.socket.get(), {&rest, 1});
    if (moved.error != 0) throw CommError(explain_errno(moved.error));
    if (moved.bytes == 0) return;
    p.sent += moved.bytes;
  }
  p.handshake.clear_output();
  p.sent = 0;
}

void PendingConnections::advance_one(Pending& p) {
  send_output(p);
  std::array<std::byte, 512> buffer;
  while (p.handshake.wanted() > 0 && p.handshake.output().empty()) {
    iovec room{buffer.data(), std::min(buffer.size(), p.handshake.wanted())};
    const Moved got = recv_some(p.socket.get(), {&room, 1});
    if (got.error != 0) throw CommError(explain_errno(got.error));
    if (got.ended) throw CommError(std::string("the peer ") + p.handshake.meaning_of_end());
    if (got.bytes == 0) break;
    p.handshake.feed(std::span(buffer).first(got.bytes));
    send_output(p);
  }
  if (!p.handshake.done() && has_passed(p.since + limits_.timeout))
    throw CommError(fmt::format("no handshake within {} ms", limits_.timeout.count()));
}

std::vector<AuthenticatedSocket> PendingConnections::advance() {
  std::vector<AuthenticatedSocket> complete;
  std::erase_if(pending_, [&](Pending& p) {
    try {
      advance_one(p);
      if (!p.handshake.done()) return false;
      const ConnectionKeys keys = p.handshake.keys();
      complete.push_back({std::move(p.socket), keys});
    } catch (const CommError& e) {
      refuse(p.peer, e.what());
      // The output tells the peer the reason, if the socket takes it.
      std::string output = p.handshake.output();
      iovec rest{output.data(), output.size()};
      if (!output.empty()) (void)send_some(p.socket.get(), {&rest, 1});
    }
    return true;
  });
  return complete;
}

}  // namespace starling
