// EmulatedLink: the slow network that --emulate bandwidth=…,latency=…,loss=… asks for, on any machine and without root. All
// connections of this process go through it: what they send is shaped as link_shape.h says, what they receive is held to the
// rate. One thread stands between each connection's endpoint and its socket; who sends to a full link waits as with a full
// socket.
#pragma once

#include <memory>

#include "starling/base/unique_fd.h"
#include "starling/net/link_shape.h"

namespace starling {

class EmulatedLink {
 public:
  explicit EmulatedLink(const LinkLimits& limits);
  // Waits, 5 s at most, until what was sent has gone to the sockets.
  ~EmulatedLink();
  EmulatedLink(const EmulatedLink&) = delete;
  EmulatedLink& operator=(const EmulatedLink&) = delete;

  // Takes over a connected, non-blocking stream socket; what is to be used in its place. From any thread. CommError if the
  // system has no descriptors left.
  UniqueFd attach(UniqueFd socket);

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

}  // namespace starling
