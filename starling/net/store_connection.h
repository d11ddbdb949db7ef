// One authenticated connection of the store, non-blocking, from either end: whole frames in, whole frames out, and
// descriptors along with them.
#pragma once

#include <deque>
#include <optional>
#include <string>

#include "starling/base/unique_fd.h"
#include "starling/net/control_frame.h"

namespace starling {

// One thread at a time. Errors: CommError naming the peer; the connection is then of no more use.
class StoreConnection {
 public:
  StoreConnection(UniqueFd socket, const ConnectionKeys& keys);

  int fd() const { return socket_.get(); }
  bool is_unix() const { return unix_; }
  const std::string& peer() const { return peer_; }

  // Queues a frame, and a duplicate of `passed_fd` with it if that is not -1.
  void queue(uint32_t tag, std::string_view body, int passed_fd = -1);
  // Sends what the socket takes; true when nothing is left.
  bool flush();
  bool idle() const { return output_.empty(); }

  // Reads what is there; false when the peer closed its side.
  bool fill();
  // The next whole frame that was read.
  std::optional<OpenedFrame> next();
  // The descriptor that came last, if any.
  UniqueFd take_passed() { return std::move(passed_); }

 private:
  UniqueFd socket_;
  DataSecurity security_;
  bool unix_;
  std::string peer_;
  std::string input_;
  std::string output_;
  size_t sent_ = 0;
  UniqueFd passing_;
  UniqueFd passed_;
  Gcm sealing_;
  ControlFrameReader reader_;
};

}  // namespace starling
