// Endpoint: one end of a connection between two ranks that carries whole messages, in order, both ways at
// once. The same interface over TCP (tcp/), Unix sockets (unix/), memory (memory/) and UCX (ucx/, upon TCP).
//
// Memory: a message is sent from and received into the caller's memory, which must stay valid and unchanged until
// the operation is complete or was cancelled; what blocks (send, recv, exchange, transfer_all) has done so when it
// throws. A message is a `head` and a `body` that are sent joined and without a copy (where they are not encrypted); the
// receiver may divide the same number of bytes differently.
// Receiving: the caller knows tag, kind and size of what comes next (collectives do), or asks by peek(). A message
// that differs is a CommError that states both sides; by then some of its bytes may lie in the receiver's memory,
// never more than were asked for.
// Kinds: control messages are authenticated and at most 64 KiB + 1 KiB; the headers of data messages are
// authenticated too, their bytes as data_security.h says (frame.h). What is not authentic is a CommError: until a
// message is complete its bytes must not be used.
// Threads: one thread may send while another receives. Two sends at once, or two receives, are the caller's fault.
// Errors: CommError when the peer is gone, TimeoutError when the deadline passes. After an error in the middle of a
// message only shutdown() and destruction make sense; a peek() that timed out may be repeated.
#pragma once

#include <poll.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "starling/base/unique_fd.h"
#include "starling/net/deadline.h"

namespace starling {

using Bytes = std::span<std::byte>;
using ConstBytes = std::span<const std::byte>;

enum class MessageKind : uint8_t { kData, kControl };
constexpr size_t kMaxControlBytes = 65 * 1024;

struct Outgoing {
  uint32_t tag = 0;
  ConstBytes head;
  ConstBytes body;
  MessageKind kind = MessageKind::kData;
  size_t bytes() const { return head.size() + body.size(); }
};

struct Incoming {
  uint32_t tag = 0;
  Bytes head;
  Bytes body;
  MessageKind kind = MessageKind::kData;
  size_t bytes() const { return head.size() + body.size(); }
};

struct MessageInfo {
  uint32_t tag = 0;
  uint64_t bytes = 0;
  MessageKind kind = MessageKind::kData;
};

class Endpoint {
 public:
  Endpoint() = default;
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;
  virtual ~Endpoint() = default;

  // Blocking forms.
  void send(const Outgoing& message, Deadline deadline);
  void recv(const Incoming& message, Deadline deadline);
  MessageInfo peek(Deadline deadline);
  // Sends and receives at the same time in one thread; exchange() below for two different peers.
  void exchange(const Outgoing& out, const Incoming& in, Deadline deadline);

  // Steps, for one thread that moves several messages at once (transfer_all). A step never waits; it returns
  // true when the message is complete. poll(2) poll_fd() for POLLIN before the next receiving step, and what
  // send_poll() says before a sending one; that it is ready does not mean that the next step moves anything.
  virtual void begin_send(const Outgoing& message) = 0;
  virtual bool step_send() = 0;
  virtual void begin_recv(const Incoming& message) = 0;
  virtual bool step_recv() = 0;
  // The next message, still to be received; nothing if its frame header has not arrived.
  virtual std::optional<MessageInfo> step_peek() = 0;
  virtual int poll_fd() const = 0;
  virtual pollfd send_poll() const { return {poll_fd(), POLLOUT, 0}; }
  // Give up what was begun and is not complete, if anything was: nothing touches its memory any more. For who does not step on,
  // because of an error or because the time is over; from the thread that steps. Several at once: cancel_all().
  void cancel_send();
  void cancel_recv();
  // Steps of these, as above: true once nothing touches the memory any more.
  virtual bool step_cancel_send() { return true; }
  virtual bool step_cancel_recv() { return true; }
  // A step of the end, as above: true once the destructor has nothing to wait for. Only more of them, and the destructor, may follow.
  virtual bool step_end() { return true; }

  // Throws CommError where the transport knows that the peer's host is gone although the connection still seems to
  // stand; transfer_all asks once a second while it waits.
  virtual void check_alive() const {}

  // Where the other end is: "10.0.0.2:41234", "pid 4711 on this host", "memory".
  virtual std::string peer() const = 0;
  // Wakes every waiter of both ends with a CommError. From any thread, repeatable.
  virtual void shutdown() = 0;

  // From now on bytes go through what `relay` makes of the socket (emulated_link.h). Before other threads use the endpoint;
  // nothing in memory, where there is no socket.
  virtual void pass_through(const std::function<UniqueFd(UniqueFd)>& /*relay*/) {}

  // Tells who is at the other end, for errors: from then on they carry `rank` and say "rank 2 (node-b)". Call
  // it before other threads use the endpoint.
  void set_peer_rank(int rank, const std::string& host);
  int peer_rank() const { return rank_; }
  // "rank 2 (node-b)" once known, else peer().
  std::string name() const { return name_.empty() ? peer() : name_; }

  // What entered and left the socket since the start, frame headers included, handshake excluded; bytes.
  uint64_t socket_sent() const { return sent_.load(std::memory_order_relaxed); }
  uint64_t socket_received() const { return received_.load(std::memory_order_relaxed); }

 protected:
  std::atomic<uint64_t> sent_{0};
  std::atomic<uint64_t> received_{0};

 private:
  int rank_ = -1;
  std::string name_;
};

// One message under way: `out` is sent, or `in` received, on `endpoint`.
struct Transfer {
  Endpoint* endpoint = nullptr;
  std::optional<Outgoing> out;
  std::optional<Incoming> in;
  bool done = false;
};

// Moves all transfers at the same time in the calling thread until all are complete. At most one `out` and
// one `in` an endpoint; several messages to one peer go into several calls. Sets `done` as they complete. What still
// moves when the deadline passes may end. A TimeoutError names the first transfer that is not done and carries its peer's rank.
void transfer_all(std::span<Transfer> transfers, Deadline deadline);

// cancel_send or cancel_recv of those that are not done, all at the same time.
void cancel_all(std::span<const Transfer> transfers);

// Those that are there.
std::vector<Endpoint*> all_of(std::span<const std::unique_ptr<Endpoint>> endpoints);

// Ends connections in order, all at the same time, before they are destroyed. None is null.
void end_all(std::span<Endpoint* const> endpoints);

// Sends to one peer and receives from another at the same time: a step of a ring.
void exchange(Endpoint& to, const Outgoing& out, Endpoint& from, const Incoming& in, Deadline deadline);

// The side that waits for connections. One thread accepts.
class Listener {
 public:
  virtual ~Listener() = default;
  // The next connection that has proved the job key. Peers that have not, are late or speak something else
  // are dropped meanwhile; the TimeoutError says how many and why the last one was.
  virtual std::unique_ptr<Endpoint> accept(Deadline deadline) = 0;
  // What a peer connects to: "10.0.0.1:41234", "@name", "/path/of/socket".
  virtual std::string address() const = 0;
  // Wakes accept() with a CommError. From any thread.
  virtual void shutdown() = 0;
};

}  // namespace starling
