// RemoteMail: send and recv between ranks that do not share memory, each pair over a connection of its own. The tag of a
// message is the tag of its frame. A send that waits for its peer takes in what others have sent meanwhile, so that
// ranks which send to each other before they receive do not block.
// Threads: send and recv may be called from several threads at once.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "starling/comm/liveness.h"
#include "starling/comm/mail.h"
#include "starling/comm/remote_peers.h"
#include "starling/net/endpoint.h"

namespace starling {

class RemoteMail {
 public:
  // As RemotePeers; `outside` is called from several threads. on_failure: told before a failure is thrown.
  RemoteMail(RemoteSetup setup, std::function<void(const Failure&)> on_failure);
  ~RemoteMail();  // leave(), and the end of the connections
  // Gives up what is arriving. The connections, for end_all(); nothing but the destructor may follow.
  std::vector<Endpoint*> leave();

  void send(const void* data, size_t bytes, int peer, uint32_t tag);
  void recv(void* data, size_t bytes, int peer, uint32_t tag);
  // False where no message with this tag is complete.
  bool try_recv(void* data, size_t bytes, int peer, uint32_t tag);
  uint64_t sent() const;
  uint64_t received() const;

 private:
  struct Box;

  [[noreturn]] void fail(const Failure& failure);
  // call(), which uses a connection: what it throws becomes this rank's failure.
  template <typename Call>
  auto on_wire(const Call& call);
  // Ends a wait for `peer` that cannot go on; `what` names it.
  void check_patience(int peer, Deadline deadline, const std::string& what);
  // Carries the message that is arriving, or the next one, as far as it goes; true when something moved. Reader only.
  bool take_in(Box& box);
  bool take_in_from_all();
  void check_size(const Box& box, uint64_t got, size_t expected, uint32_t tag);
  // The oldest complete letter with this tag into `data`. Call with the box's mutex held.
  bool take_complete(Box& box, void* data, size_t bytes, uint32_t tag);
  // Receives one message, into `data` if its tag is `tag`; true then.
  bool take_one(Box& box, void* data, size_t bytes, uint32_t tag, Deadline deadline);
  std::string name(int rank) const;

  const RemoteSetup setup_;
  const std::function<void(const Failure&)> on_failure_;
  std::vector<std::unique_ptr<Box>> boxes_;  // by rank; null where there is no connection
  bool has_left_ = false;
};

}  // namespace starling
