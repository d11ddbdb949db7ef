// LocalMail: send and recv between the ranks of one host, through rings in shared memory.
//
// Each ordered pair of ranks has a ring of bytes in the sender's region of the rings window. A message is a header and
// its bytes, padded to 16; long messages pass through the ring piece by piece. send() returns when the last byte is in
// the ring. A send that waits for room takes in what others have sent meanwhile, so that ranks which send to each other
// (or in a circle) before they receive do not block.
// Cost of N bytes: α + 4 N β (two copies), both copies at the same time beyond the size of the ring.
// Threads: send and recv may be called from several threads at once.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "starling/comm/local_team.h"
#include "starling/comm/mail.h"

namespace starling {

// Of each pair's ring, for p ranks a host.
size_t ring_bytes(int local_size);

class LocalMail {
 public:
  // rings: local_size * ring_bytes(local_size) a region, not populated, zero.
  LocalMail(LocalTeam& team, std::shared_ptr<Window> rings);
  ~LocalMail();

  void send(const void* data, size_t bytes, int local_peer, uint32_t tag);
  void recv(void* data, size_t bytes, int local_peer, uint32_t tag);
  // False where no message with this tag is complete.
  bool try_recv(void* data, size_t bytes, int local_peer, uint32_t tag);

 private:
  struct Box;
  struct Target {
    uint32_t tag;
    std::byte* data;
    size_t bytes;
    bool done = false;
  };

  void put(int peer, const void* data, size_t bytes);
  void await_room(int peer, uint64_t bytes);
  // Takes in what has arrived from `peer`; a message that fits *target goes straight there. The reader only.
  bool take_in(int peer, Target* target);
  bool take_header(int peer, uint64_t available, Target* target);
  bool take_in_from_all();
  // The oldest complete letter with this tag into `data`. Call with the box's mutex held.
  bool take_complete(Box& box, void* data, size_t bytes, int peer, uint32_t tag);
  void await_bytes(int peer, const Target& target);
  std::byte* ring(int owner, int peer) const {
    return rings_->region(owner) + static_cast<size_t>(peer) * ring_;
  }

  LocalTeam& team_;
  const std::shared_ptr<Window> rings_;
  const uint64_t ring_;
  std::vector<std::unique_ptr<Box>> boxes_;  // one a local rank
};

}  // namespace starling
