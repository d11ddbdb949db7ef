// RemoteMessages: send and recv between ranks that do not share memory. Each pair of ranks has one connection
// for messages.
//
// The tag of a message is the tag of its frame. While send() waits for its peer, it takes in what other ranks
// have sent. Ranks that send to each other before they receive therefore do not block, as long as their
// inboxes have room.
// Threads: several threads may call send and recv at the same time.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "starling/base/error.h"
#include "starling/comm/host/liveness.h"
#include "starling/comm/inbox.h"
#include "starling/comm/network/remote_peers.h"
#include "starling/net/endpoint.h"

namespace starling {

// RemoteMessages is this rank's end of the connections for messages.
class RemoteMessages {
 public:
  // The setup is that of RemotePeers. Several threads may call `outside`. `on_failure` is called before a
  // failure is thrown.
  RemoteMessages(RemoteSetup setup, std::function<void(const Failure&)> on_failure);
  ~RemoteMessages();  // calls leave() and ends the connections, unless leave() was called before
  // Gives up the messages that are arriving, and returns the connections for end_all(). Afterwards only the
  // destructor may be called.
  std::vector<Endpoint*> leave();
  // Ends all connections, because the group has failed on this rank. Messages under way may be lost. A peer
  // that waits for this rank then looks for the note of this rank (failure_notes.h). Any thread may call it,
  // repeatedly.
  void abandon();

  // Sends a message. It returns when `data` may change. Errors: TimeoutError if the message is not sent
  // within the timeout; CommError if the connection or the group has failed.
  void send(const void* data, size_t bytes, int peer, uint32_t tag);
  // Receives the oldest message with this tag. Errors: CommError if its size is not `bytes`, or as send().
  void recv(void* data, size_t bytes, int peer, uint32_t tag);
  // Like recv(), but returns false if no message with this tag is complete. If the connection has ended, it
  // throws, but the group does not fail.
  bool try_recv(void* data, size_t bytes, int peer, uint32_t tag);
  // The bytes of all messages that were sent completely, without frame headers.
  uint64_t sent() const;
  // The bytes of all messages that were received completely, without frame headers.
  uint64_t received() const;

 private:
  struct Box;

  [[noreturn]] void fail(const Failure& failure);
  // Returns the failure behind an error of a connection. The peer may have left a note.
  Failure explained(const CommError& error) const;
  // Runs call(), which uses a connection. A CommError of call() becomes this rank's failure.
  template <typename Call>
  auto on_wire(const Call& call);
  // How long a thread waits for one message.
  struct Patience {
    Deadline deadline;
    bool warned = false;  // that the message is late
  };
  // Throws if a wait for `peer` cannot go on, and warns if it is long. `what` says what the peer did not do.
  void check_patience(int peer, Patience& patience, const std::string& what);
  // Moves the message that is arriving, or the next one, as far as possible. Returns whether a message is
  // complete. Only the reader calls this.
  bool take_in(Box& box);
  bool take_in_from_all();
  void check_size(const Box& box, uint64_t got, size_t expected, uint32_t tag);
  // Copies the oldest complete message with this tag to `data`. The caller holds the mutex of the box.
  bool take_complete(Box& box, void* data, size_t bytes, uint32_t tag);
  // Receives one message. Returns true if its tag is `tag`; its bytes are then in `data`. Otherwise the
  // message goes into the box. Also returns false after a pause if the box has no room.
  bool take_one(Box& box, void* data, size_t bytes, uint32_t tag, Patience& patience);
  std::string name(int rank) const;

  const RemoteSetup setup_;
  const std::function<void(const Failure&)> on_failure_;
  std::vector<std::unique_ptr<Box>> boxes_;  // by rank; null if there is no connection
  bool has_left_ = false;
};

}  // namespace starling
