// EmulatedLink: the slow network that --emulate bandwidth=…,latency=…,loss=… asks for. It works on any
// machine and without root.
//
// All connections of this process pass through it. What they send is shaped as link_shape.h describes. What
// they receive is limited to the rate. One thread carries the bytes between the endpoint and the socket of
// each connection. A thread that sends to a full link waits as with a full socket.
#pragma once

#include <memory>

#include "starling/base/unique_fd.h"
#include "starling/net/emulation/link_shape.h"

namespace starling {

// EmulatedLink is the link of one process. All its connections share the rate.
class EmulatedLink {
 public:
  // Starts the thread. Errors: CommError if the system has no descriptors left.
  explicit EmulatedLink(const LinkLimits& limits);
  // Waits for at most 5 s until everything that was sent has gone to the sockets, and closes the connections.
  ~EmulatedLink();
  EmulatedLink(const EmulatedLink&) = delete;
  EmulatedLink& operator=(const EmulatedLink&) = delete;

  // Takes over a connected, non-blocking stream socket and returns the socket to use in its place. Any thread
  // may call it.
  // Errors: CommError if the system has no descriptors left.
  UniqueFd attach(UniqueFd socket);

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

}  // namespace starling
