#include "starling/net/stream/control_frame.h"

#include <algorithm>

#include "starling/base/check.h"
#include "starling/base/error.h"

namespace starling {
namespace {

std::string_view text_of(ConstBytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

std::string seal_control_frame(Gcm& sealing, DataSecurity security, uint32_t tag, std::string_view body) {
  STARLING_CHECK(body.size() <= kMaxControlBytes, "a control message of {} bytes", body.size());
  const BodyForm form = body_form(security, MessageKind::kControl);
  const FrameHeader header = seal_frame_header(sealing, {tag, body.size(), MessageKind::kControl});
  std::string frame;
  frame.reserve(framed_bytes(form, body.size()));
  frame += text_of(header);
  std::string segment;
  for (size_t at = 0; at < body.size(); at += kSegmentBytes) {
    segment = body.substr(at, kSegmentBytes);
    const ConstBytes piece = std::as_bytes(std::span(segment));
    const Seal seal =
        seal_segment(sealing, form, {&piece, 1}, std::as_writable_bytes(std::span(segment)).data());
    frame += segment;
    frame += text_of(seal);
  }
  return frame;
}

std::optional<OpenedFrame> ControlFrameReader::next(std::string& input, const std::string& peer) {
  if (input.size() < kFrameHeaderBytes) return std::nullopt;
  if (!arriving_) {
    FrameHeader header;
    std::copy_n(std::as_bytes(std::span(input)).begin(), header.size(), header.begin());
    const MessageInfo info = open_frame_header(opening_, header, peer);
    if (info.kind != MessageKind::kControl)
      throw CommError(peer + ": sent a data message where only control messages are allowed");
    arriving_ = info;
  }
  const size_t total = framed_bytes(form_, arriving_->bytes);
  if (input.size() < total) return std::nullopt;
  OpenedFrame frame{arriving_->tag, {}};
  frame.body.reserve(arriving_->bytes);
  for (size_t at = kFrameHeaderBytes; at < total;) {
    const size_t count = std::min(kSegmentBytes, total - at - kSealBytes);
    const Bytes piece = std::as_writable_bytes(std::span(input)).subspan(at, count);
    Seal seal;
    std::copy_n(std::as_bytes(std::span(input)).begin() + static_cast<std::ptrdiff_t>(at + count),
                seal.size(), seal.begin());
    open_segment(opening_, form_, {&piece, 1}, seal, peer);
    frame.body += text_of(piece);
    at += count + kSealBytes;
  }
  input.erase(0, total);
  arriving_.reset();
  return frame;
}

}  // namespace starling
