// Control frames (frame.h) as strings, for connections that carry nothing else, such as the store's.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "starling/net/security/handshake.h"
#include "starling/net/stream/frame.h"

namespace starling {

// Returns one frame: header, body and seals. The body has at most kMaxControlBytes.
std::string seal_control_frame(Gcm& sealing, DataSecurity security, uint32_t tag, std::string_view body);

// OpenedFrame is a frame that was authenticated.
struct OpenedFrame {
  uint32_t tag = 0;
  std::string body;
};

// ControlFrameReader is the receiving end of one connection.
class ControlFrameReader {
 public:
  // `keys` are those of the connection, seen from the receiving end.
  explicit ControlFrameReader(const ConnectionKeys& keys)
      : form_(body_form(keys.security, MessageKind::kControl)), opening_(keys.receiving, Gcm::Use::kOpen) {}

  // Takes the first frame off `input` if all of it is there. Otherwise returns nothing. It never waits for
  // more than a frame of kMaxControlBytes. `peer` names the peer in errors. Errors: CommError if the frame is
  // not an authentic control frame. The connection is then unusable.
  std::optional<OpenedFrame> next(std::string& input, const std::string& peer);

 private:
  BodyForm form_;
  Gcm opening_;
  std::optional<MessageInfo> arriving_;  // the header of the arriving frame, which has been opened
};

}  // namespace starling
