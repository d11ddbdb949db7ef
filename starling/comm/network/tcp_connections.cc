#include "starling/comm/network/tcp_connections.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "starling/base/error.h"
#include "starling/net/address.h"
#include "starling/net/stream/stream_endpoint.h"
#include "starling/net/stream/stream_listener.h"

namespace starling {
namespace {

constexpr std::chrono::milliseconds kLookForLost{200};  // between checks whether an awaited rank is lost

// Threads that connect to peers. Several threads hide the round trips of the handshakes. Further threads only
// make the listeners' queues longer.
constexpr size_t kDialers = 4;
constexpr int kAttempts = 5;                             // connections to a peer that refuses them
constexpr std::chrono::milliseconds kFirstPause{20};     // before the second attempt; then twice as long
constexpr std::chrono::milliseconds kFirstShare{5'000};  // for the first attempt; then twice as long

// What a connection is for. Each pair of ranks has one of each.
constexpr std::array<const char*, 2> kPurposes = {"collectives", "messages"};

// Returns the parties of a connection to rank `target`, which may be this rank. Both ends prove them, with
// the group's name and generation.
Parties parties_of(const ConnectionSetup& setup, int target) {
  return {.service = "ranks", .group = setup.group, .target = fmt::format("rank {}", target)};
}

std::string caller_name(int rank, const char* purpose) {
  return fmt::format("rank {} {}", rank, purpose);
}

// Connects to a peer. A listener with many connections may drop one before its handshake is complete, so a
// refused connection is tried again after a pause.
std::unique_ptr<Endpoint> connect_patiently(const ConnectionSetup& setup, const JobIdentity& identity,
                                            int peer, const std::string& address, const Parties& parties,
                                            const std::shared_ptr<const TlsSettings>& settings,
                                            const std::atomic<bool>& stop) {
  std::chrono::milliseconds share = kFirstShare, pause = kFirstPause;
  for (int refused = 0;;) {
    try {
      return tcp_connect(address, identity, parties, std::min(setup.deadline, deadline_in(share)), settings);
    } catch (const TimeoutError&) {
      if (has_passed(setup.deadline) || stop) throw;
      share *= 2;
    } catch (const CommError&) {
      if (++refused == kAttempts || stop) throw;
    }
    if (setup.refuse_lost) setup.refuse_lost(peer);
    std::this_thread::sleep_for(pause);
    pause *= 2;
  }
}

std::unique_ptr<Endpoint> dial(const ConnectionSetup& setup, const JobIdentity& identity, int peer,
                               const std::string& address, const char* purpose,
                               const std::shared_ptr<const TlsSettings>& settings,
                               const std::atomic<bool>& stop) {
  Parties parties = parties_of(setup, peer);
  parties.caller = caller_name(setup.rank, purpose);
  auto endpoint = connect_patiently(setup, identity, peer, address, parties, settings, stop);
  endpoint->set_peer_rank(peer, setup.host_names[peer]);
  return endpoint;
}

// Stores the connection of a higher rank, which the listener has accepted. A later connection of a rank
// replaces an earlier one, because the rank has given the earlier one up.
void take(const ConnectionSetup& setup, PeerConnections& connections, std::unique_ptr<Endpoint> endpoint) {
  for (size_t r = setup.rank + 1; r < setup.remote.size(); ++r) {
    if (!setup.remote[r]) continue;
    const int rank = static_cast<int>(r);
    for (auto* kind : {&connections.collectives, &connections.messages}) {
      const char* purpose = kPurposes[kind == &connections.collectives ? 0 : 1];
      if (endpoint->caller() != caller_name(rank, purpose)) continue;
      endpoint->set_peer_rank(rank, setup.host_names[r]);
      (*kind)[r] = std::move(endpoint);
      return;
    }
  }
  throw CommError(
      fmt::format("{} proves that it is \"{}\" of this group, which is not expected to connect; "
                  "two jobs with one key need different job ids",
                  endpoint->peer(), endpoint->caller()));
}

int first_missing(const ConnectionSetup& setup, const PeerConnections& connections) {
  for (size_t r = setup.rank + 1; r < setup.remote.size(); ++r) {
    if (setup.remote[r] && (!connections.collectives[r] || !connections.messages[r]))
      return static_cast<int>(r);
  }
  return -1;
}

// Dialers connect this rank to the lower ranks, in a few threads, while the caller accepts the higher ranks.
class Dialers {
 public:
  // The threads fill the entries of the lower ranks in `connections`. If one fails, it shuts
  // `listener` down, which wakes the caller. All arguments must outlive this object.
  Dialers(const ConnectionSetup& setup, const JobIdentity& identity, PeerConnections& connections,
          Listener& listener)
      : setup_(setup), identity_(identity), connections_(connections), listener_(listener) {
    // The nearest rank is first, so that the ranks do not all connect to one rank at the same time.
    for (int r = setup.rank - 1; r >= 0; --r)
      if (setup.remote[r]) peers_.push_back(r);
    if (!peers_.empty()) addresses_ = setup.addresses();
  }
  void start() {
    for (size_t i = 0; i < std::min(kDialers, peers_.size()); ++i)
      threads_.emplace_back([this] { dial_all(); });
  }
  ~Dialers() {
    stop_ = true;
    join();
  }
  Dialers(const Dialers&) = delete;

  // Waits for all connections. Errors: what the first thread that failed has thrown.
  void finish() {
    join();
    if (failure_) std::rethrow_exception(failure_);
  }
  bool failed() {
    const std::lock_guard lock(mutex_);
    return failure_ != nullptr;
  }

 private:
  void dial_all() {
    try {
      for (size_t i = next_++; i < peers_.size() && !stop_; i = next_++) {
        const int peer = peers_[i];
        const std::string& address = addresses_[static_cast<size_t>(peer)];
        connections_.collectives[peer] =
            dial(setup_, identity_, peer, address, kPurposes[0], settings_, stop_);
        connections_.messages[peer] = dial(setup_, identity_, peer, address, kPurposes[1], settings_, stop_);
      }
    } catch (const CommError&) {
      const std::lock_guard lock(mutex_);
      if (!failure_) failure_ = std::current_exception();
      stop_ = true;
      listener_.shutdown();
    }
  }
  void join() {
    for (std::thread& thread : threads_)
      if (thread.joinable()) thread.join();
  }

  const ConnectionSetup& setup_;
  const JobIdentity& identity_;
  const std::shared_ptr<const TlsSettings> settings_ = make_tls_settings(HandshakeRole::kClient);
  PeerConnections& connections_;
  Listener& listener_;
  std::vector<int> peers_;
  std::vector<std::string> addresses_;
  std::atomic<size_t> next_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::exception_ptr failure_;
  std::vector<std::thread> threads_;
};

// Accepts the connections of the higher ranks.
void accept_all(const ConnectionSetup& setup, PeerConnections& connections, Listener& listener) {
  for (int missing = first_missing(setup, connections); missing >= 0;
       missing = first_missing(setup, connections)) {
    try {
      take(setup, connections, listener.accept(std::min(setup.deadline, deadline_in(kLookForLost))));
    } catch (const TimeoutError& error) {
      if (setup.refuse_lost) setup.refuse_lost(missing);
      if (!has_passed(setup.deadline)) continue;
      throw TimeoutError(
          fmt::format("rank {} ({}) did not connect: {}", missing, setup.host_names[missing], error.what()),
          missing);
    }
  }
}

PeerConnections join_all(const ConnectionSetup& setup, const std::string& bind_address,
                         const JobIdentity& identity) {
  const auto listener = tcp_listen(host_port_text(bind_address, 0), identity, parties_of(setup, setup.rank));
  setup.publish(listener->address());
  PeerConnections connections;
  connections.collectives.resize(setup.remote.size());
  connections.messages.resize(setup.remote.size());
  Dialers dialers(setup, identity, connections, *listener);
  dialers.start();
  try {
    accept_all(setup, connections, *listener);
  } catch (const CommError&) {
    if (!dialers.failed()) throw;  // otherwise a dialer has shut the listener down
  }
  dialers.finish();
  return connections;
}

}  // namespace

Connector tcp_connector(std::string bind_address, JobIdentity identity,
                        std::function<UniqueFd(UniqueFd)> relay) {
  return [=](const ConnectionSetup& setup) {
    PeerConnections connections = join_all(setup, bind_address, identity);
    for (auto* kind : {&connections.collectives, &connections.messages}) {
      for (const auto& endpoint : *kind) {
        if (!endpoint) continue;
        if (relay) endpoint->pass_through(relay);
        endpoint->rest();  // whoever waits for the peer calls check_alive()
      }
    }
    return connections;
  };
}

}  // namespace starling
