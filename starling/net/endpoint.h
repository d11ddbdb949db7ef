// Endpoint: one end of a connection between two ranks. It carries whole messages, in order, in both
// directions at once.
//
// There are endpoints over TCP and Unix sockets (net/stream/), in memory (net/memory/) and over UCX
// (net/ucx/).
//
// Memory: a message is sent from and received into the caller's memory. The memory must stay valid and
// unchanged until the operation is complete or cancelled. The blocking functions (send, recv, exchange,
// transfer_all) cancel unfinished operations before they throw.
//
// Parts: a message has a head and a body, which are sent joined. The receiver may divide the bytes
// differently. Over TCP and Unix sockets, head and body are copied only to be encrypted.
//
// Receiving: the caller either knows tag, kind and size of the next message, as collectives do, or calls
// peek(). If the message differs, a CommError states both sides. By then some of its bytes may lie in the
// receiver's memory, but never more than the receiver asked for.
//
// Kinds: control messages are always authenticated and have at most 64 KiB + 1 KiB. The headers of data
// messages are authenticated, too. DataSecurity (net/security/data_security.h) determines the protection of
// their bytes. If something is not authentic, a CommError says so. The bytes of a message must not be used
// before it is complete. Endpoints in memory authenticate nothing.
//
// Threads: one thread may send while another thread receives. Only one thread at a time may send, and only
// one thread at a time may receive.
//
// Errors: CommError if the peer is gone; TimeoutError if the deadline passes. After an error within a
// message, only shutdown() and destruction are allowed. A peek() that timed out may be repeated.
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
#include "starling/net/security/crypto.h"

namespace starling {

// Bytes to write to.
using Bytes = std::span<std::byte>;
// Bytes to read.
using ConstBytes = std::span<const std::byte>;

// MessageKind tells data (tensors) from control messages.
enum class MessageKind : uint8_t { kData, kControl };
// The largest control message. The extra 1 KiB has room for the key and the lengths beside a value of the
// store.
constexpr size_t kMaxControlBytes = 65 * 1024;

// Outgoing is a message to be sent.
struct Outgoing {
  uint32_t tag = 0;
  ConstBytes head;
  ConstBytes body;
  MessageKind kind = MessageKind::kData;
  // The size of the message.
  size_t bytes() const { return head.size() + body.size(); }
};

// Incoming is the memory for an expected message.
struct Incoming {
  uint32_t tag = 0;
  Bytes head;
  Bytes body;
  MessageKind kind = MessageKind::kData;
  // The size of the message.
  size_t bytes() const { return head.size() + body.size(); }
};

// MessageInfo describes a message that has begun to arrive.
struct MessageInfo {
  uint32_t tag = 0;
  uint64_t bytes = 0;
  MessageKind kind = MessageKind::kData;
};

// Endpoint is the interface of a connection's end. The top of this file states the contract.
class Endpoint {
 public:
  Endpoint() = default;
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;
  virtual ~Endpoint();

  // Sends a message and waits until its memory may change.
  void send(const Outgoing& message, Deadline deadline);
  // Receives the next message, which must have the expected tag, kind and size.
  void recv(const Incoming& message, Deadline deadline);
  // Waits for the header of the next message and describes the message, which is still to be received.
  MessageInfo peek(Deadline deadline);
  // Sends and receives at the same time in one thread. For two different peers, see exchange() below.
  void exchange(const Outgoing& out, const Incoming& in, Deadline deadline);

  // Steps are for one thread that moves several messages at once (transfer_all). A step never waits.
  // Before the next receiving step, poll(2) poll_fd() for POLLIN. Before the next sending step, poll
  // send_poll(). A descriptor that is ready does not promise that the next step moves anything.

  // Begins to send a message.
  virtual void begin_send(const Outgoing& message) = 0;
  // Sends what the transport takes. Returns true when the message is complete.
  virtual bool step_send() = 0;
  // Begins to receive a message.
  virtual void begin_recv(const Incoming& message) = 0;
  // Receives what is there. Returns true when the message is complete.
  virtual bool step_recv() = 0;
  // Describes the next message, which is still to be received. Returns nothing if its header has not arrived.
  virtual std::optional<MessageInfo> step_peek() = 0;
  // The descriptor to poll for POLLIN before a receiving step.
  virtual int poll_fd() const = 0;
  // What to poll before a sending step.
  virtual pollfd send_poll() const { return {poll_fd(), POLLOUT, 0}; }
  // Cancels an unfinished send. Its memory is free afterwards. Call it from the stepping thread, after an
  // error or after the deadline. cancel_all() cancels several operations at once.
  void cancel_send();
  // Cancels an unfinished receive, like cancel_send().
  void cancel_recv();
  // A step of cancel_send(). Returns true once nothing touches the memory any more.
  virtual bool step_cancel_send() { return true; }
  // A step of cancel_recv(). Returns true once nothing touches the memory any more.
  virtual bool step_cancel_recv() { return true; }
  // A step of the end of the connection: what was sent leaves, if possible. Returns true once the destructor
  // has nothing to wait for. Only further calls of step_end() and the destructor may follow.
  virtual bool step_end() { return true; }

  // Throws CommError if the transport knows that the peer's host is gone although the connection still seems
  // to exist. transfer_all calls it once a second while it waits.
  virtual void check_alive() const {}
  // After how long without an answer check_alive() takes the peer's host for gone. 0 if it never does.
  virtual std::chrono::milliseconds dead_after() const { return {}; }
  // Stops the probes by which the kernel watches the peer's host, until the next check_alive(). The kernel
  // sends a probe every second on each connection. That is much traffic for a process with connections to
  // many ranks.
  virtual void rest() {}

  // Where the other end is: "10.0.0.2:41234", "pid 4711 on this host" or "memory".
  virtual std::string peer() const = 0;
  // Wakes every waiter of both ends with a CommError. Any thread may call it, repeatedly.
  virtual void shutdown() = 0;

  // Replaces the socket by the socket that `relay` returns for it (net/emulation/emulated_link.h). Endpoints
  // without a socket ignore the call. Call it before other threads use the endpoint.
  virtual void pass_through(const std::function<UniqueFd(UniqueFd)>& /*relay*/) {}

  // Sets which rank is at the other end. From then on errors carry `rank` and say "rank 2 (node-b)". Call it
  // before other threads use the endpoint.
  void set_peer_rank(int rank, const std::string& host);
  // The rank at the other end; -1: unknown.
  int peer_rank() const { return rank_; }
  // The name of the other end for messages: "rank 2 (node-b)" if the rank is known, else peer().
  std::string name() const { return name_.empty() ? peer() : name_; }

  // The name that the peer has proved, if the peer connected to a listener (Parties::caller). Empty on the
  // side that connected.
  const std::string& caller() const { return caller_; }
  // A secret that only the two ends of this connection have, for further connections between them.
  const Digest& shared_secret() const { return shared_secret_; }

  // The bytes that have entered the socket: messages, frame headers and seals, but not the handshake.
  uint64_t socket_sent() const { return sent_.load(std::memory_order_relaxed); }
  // The bytes that have left the socket, counted as by socket_sent().
  uint64_t socket_received() const { return received_.load(std::memory_order_relaxed); }
  // The bytes of the bodies of all data messages that were sent completely.
  uint64_t payload_sent() const { return payload_sent_.load(std::memory_order_relaxed); }
  // The bytes of the bodies of all data messages that were received completely.
  uint64_t payload_received() const { return payload_received_.load(std::memory_order_relaxed); }

 protected:
  // For caller() and shared_secret().
  void set_proved(std::string caller, const Digest& shared_secret) {
    caller_ = std::move(caller);
    shared_secret_ = shared_secret;
  }
  // For payload_sent(). An endpoint calls it once for each message, when the message has been sent.
  void count_sent(const Outgoing& message) {
    if (message.kind == MessageKind::kData)
      payload_sent_.fetch_add(message.body.size(), std::memory_order_relaxed);
  }
  // For payload_received(). An endpoint calls it once for each message, when the message is there.
  void count_received(const Incoming& message) {
    if (message.kind == MessageKind::kData)
      payload_received_.fetch_add(message.body.size(), std::memory_order_relaxed);
  }

  std::atomic<uint64_t> sent_{0};
  std::atomic<uint64_t> received_{0};

 private:
  std::atomic<uint64_t> payload_sent_{0};
  std::atomic<uint64_t> payload_received_{0};
  int rank_ = -1;
  std::string name_;
  std::string caller_;
  Digest shared_secret_{};
};

// Transfer is one message under way on `endpoint`: either `out` is sent, or `in` is received.
struct Transfer {
  Endpoint* endpoint = nullptr;
  std::optional<Outgoing> out;
  std::optional<Incoming> in;
  bool done = false;
};

// Moves all transfers at the same time in the calling thread until all are complete, and sets `done` as they
// complete. There is at most one `out` and one `in` per endpoint. Several messages to one peer need several
// calls. After the deadline, the call continues only as long as every step moves bytes. The TimeoutError
// names the first unfinished transfer and carries its peer's rank.
void transfer_all(std::span<Transfer> transfers, Deadline deadline);

// Cancels all transfers that are not done, at the same time.
void cancel_all(std::span<const Transfer> transfers);

// Returns the endpoints that are not null.
std::vector<Endpoint*> all_of(std::span<const std::unique_ptr<Endpoint>> endpoints);

// Ends connections by step_end(), all at the same time, before they are destroyed. No pointer may be null.
void end_all(std::span<Endpoint* const> endpoints);

// Sends to one peer and receives from another peer at the same time, as in a step of a ring.
void exchange(Endpoint& to, const Outgoing& out, Endpoint& from, const Incoming& in, Deadline deadline);

// Listener waits for connections. Only one thread may accept.
class Listener {
 public:
  virtual ~Listener() = default;
  // Returns the next connection that has proved the job key. It drops peers that fail, are late, or speak
  // another protocol. Errors: TimeoutError that says how many peers were dropped, and why the last one was;
  // CommError after shutdown().
  virtual std::unique_ptr<Endpoint> accept(Deadline deadline) = 0;
  // The address to which peers connect: "10.0.0.1:41234", "@name" or "/path/of/socket".
  virtual std::string address() const = 0;
  // Wakes accept() with a CommError. Any thread may call it.
  virtual void shutdown() = 0;
};

}  // namespace starling
