// LocalMessages: send and recv between the ranks of one host, through rings in shared memory.
//
// Each ordered pair of ranks has a ring of bytes in the sender's region of the rings window. A message
// consists of a header and its bytes. It passes through the ring in pieces that are padded to 16 bytes.
// send() returns when the last byte is in the ring. While send() waits for room, it takes in what other ranks
// have sent. Ranks that send to each other (or in a circle) before they receive therefore do not block, as
// long as their inboxes have room.
// Cost of N bytes: α + 4 N β for two copies. If the message is longer than the ring, both copies run at the
// same time.
// Threads: several threads may call send and recv at the same time.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "starling/comm/host/local_team.h"
#include "starling/comm/inbox.h"

namespace starling {

// Returns the size of each pair's ring in bytes, for local_size ranks on the host.
size_t ring_bytes(int local_size);

// LocalMessages is one rank's end of all rings of its host. Ranks are local ranks here.
class LocalMessages {
 public:
  // `rings` has local_size * ring_bytes(local_size) bytes per region. They are zero and need not be
  // populated. `inbox_bytes` is GroupOptions::inbox_bytes.
  LocalMessages(LocalTeam& team, std::shared_ptr<Window> rings, uint64_t inbox_bytes);
  ~LocalMessages();

  // Sends a message. `waiting` says how the calling thread waits for room. Errors: TimeoutError if the peer
  // takes in nothing for the timeout of the team; CommError if a rank has failed.
  void send(const void* data, size_t bytes, int local_peer, uint32_t tag, const WaitPolicy& waiting);
  // Receives the oldest message with this tag. `waiting` says how the calling thread waits for bytes. Errors:
  // CommError if the size of the message is not `bytes`, or if a rank has failed; TimeoutError.
  void recv(void* data, size_t bytes, int local_peer, uint32_t tag, const WaitPolicy& waiting);
  // Like recv(), but returns false if no message with this tag is complete.
  bool try_recv(void* data, size_t bytes, int local_peer, uint32_t tag);

 private:
  struct Box;
  struct Target {
    uint32_t tag;
    std::byte* data;
    size_t bytes;
    bool done = false;
    bool warned = false;  // that the message is late
  };

  void put(int peer, const void* data, size_t bytes, const WaitPolicy& waiting);
  void await_room(int peer, uint64_t bytes, const WaitPolicy& waiting);
  // Waits until this rank has the message for `target`.
  void receive(int peer, Target& target, const WaitPolicy& waiting, std::unique_lock<std::mutex>& lock);
  // Takes in what has arrived from `peer`. A message with the tag of *target goes directly to its memory.
  // Returns whether anything was taken in. Only the reader calls this.
  bool take_in(int peer, Target* target);
  InboxMessage make_message(int peer, uint32_t tag, uint64_t bytes);
  bool take_header(int peer, uint64_t available, Target* target);
  bool take_in_from_all();
  // Copies the oldest complete message with this tag to `data`. Returns false if there is none. The caller
  // holds the mutex of the box.
  bool take_complete(Box& box, void* data, size_t bytes, int peer, uint32_t tag);
  void await_bytes(int peer, Target& target, const WaitPolicy& waiting);
  // Warns once when a tenth of the timeout has passed, and returns a failure after `deadline`. `late` says
  // what the peer did not do.
  std::optional<Failure> check_patience(int peer, std::chrono::steady_clock::time_point deadline,
                                        bool& warned, const std::function<std::string()>& late) const;
  std::byte* ring(int owner, int peer) const {
    return rings_->region(owner) + static_cast<size_t>(peer) * ring_;
  }

  LocalTeam& team_;
  const std::shared_ptr<Window> rings_;
  const uint64_t ring_;
  std::vector<std::unique_ptr<Box>> boxes_;  // one per local rank
};

}  // namespace starling
