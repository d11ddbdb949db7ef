// StoreConnection: one authenticated connection of the store, from either end. It is non-blocking. It carries
// whole frames, and a descriptor together with a frame.
#pragma once

#include <deque>
#include <optional>
#include <string>

#include "starling/base/unique_fd.h"
#include "starling/net/stream/control_frame.h"

namespace starling {

// StoreConnection may be used by one thread at a time. Errors: CommError that names the peer. The connection
// is unusable after an error.
class StoreConnection {
 public:
  // Takes over a non-blocking socket on which the handshake is complete.
  StoreConnection(UniqueFd socket, const ConnectionKeys& keys);

  // The socket.
  int fd() const { return socket_.get(); }
  // Whether the socket is a Unix socket, over which descriptors pass.
  bool is_unix() const { return unix_; }
  // The name of the peer for messages.
  const std::string& peer() const { return peer_; }

  // Queues a frame while no other frame is queued. If `passed_fd` is not -1, a duplicate of that descriptor
  // travels with the frame.
  void queue(uint32_t tag, std::string_view body, int passed_fd = -1);
  // Sends what the socket takes. Returns true when nothing is left.
  bool flush();
  // Whether nothing is queued.
  bool idle() const { return output_.empty(); }

  // Reads what is there. Returns false when the peer has closed its side.
  bool fill();
  // Returns the next whole frame that was read, or nothing.
  std::optional<OpenedFrame> next();
  // Whether the kernel of the peer's host has said that the peer's side is closed. It is false for a peer
  // whose host does not answer.
  bool peer_ended() const { return peer_ended_; }
  // Returns the last descriptor that arrived, if any.
  UniqueFd take_passed() { return std::move(passed_); }

 private:
  [[noreturn]] void fail(int error);

  UniqueFd socket_;
  DataSecurity security_;
  bool unix_;
  std::string peer_;
  std::string input_;
  std::string output_;
  size_t sent_ = 0;
  bool peer_ended_ = false;
  UniqueFd passing_;
  UniqueFd passed_;
  Gcm sealing_;
  ControlFrameReader reader_;
};

}  // namespace starling
