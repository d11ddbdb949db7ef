// Control frames (frame.h) as strings, for connections on which nothing else travels: the store's.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "starling/net/frame.h"
#include "starling/net/handshake.h"

namespace starling {

// One frame: header, body, seals. At most kMaxControlBytes of body.
std::string seal_control_frame(Gcm& sealing, DataSecurity security, uint32_t tag, std::string_view body);

struct OpenedFrame {
  uint32_t tag = 0;
  std::string body;
};

// The receiving end of one connection.
class ControlFrameReader {
 public:
  explicit ControlFrameReader(const ConnectionKeys& keys)
      : form_(body_form(keys.security, MessageKind::kControl)), opening_(keys.receiving, Gcm::Use::kOpen) {}

  // The first frame of `input`, taken off it, if it is there as a whole: never more than kMaxControlBytes and the frame around
  // them are waited for. CommError where it is no authentic control frame; the connection is then of no more use.
  std::optional<OpenedFrame> next(std::string& input, const std::string& peer);

 private:
  BodyForm form_;
  Gcm opening_;
  std::optional<MessageInfo> arriving_;  // its header was opened
};

}  // namespace starling
