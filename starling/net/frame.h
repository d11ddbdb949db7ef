// The frame of a message on a byte stream, all integers little-endian:
//
//   offset 0   magic   u32   "SDAT" for data, "SCTL" for control
//          4   tag     u32   what the message is, chosen by the caller
//          8   length  u64   bytes of the message
//         16   seal    16 bytes: authenticates the 16 bytes before it
//         32   message
//
// The message is plain (data under `none`), or in segments of 64 KiB, the last one shorter, each followed by a seal of 16
// bytes: authenticated as it is (control, and data under `auth`) or encrypted (both under `encrypt`). A header and a segment
// are each a unit of gcm.h under the key of this direction, numbered through from the first byte of the connection. So
// a frame that is replayed, reflected, reordered or cut does not open; a length is known to be the peer's before memory is taken
// for it; and no more than a segment is in flight unchecked. Under `none` the bytes of data messages alone are not checked.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "starling/net/data_security.h"
#include "starling/net/endpoint.h"
#include "starling/net/gcm.h"

namespace starling {

constexpr size_t kFrameHeaderBytes = 32;
constexpr size_t kSegmentBytes = 64 * 1024;
constexpr uint64_t kMaxDataBytes = uint64_t{1} << 48;

using FrameHeader = std::array<std::byte, kFrameHeaderBytes>;

enum class BodyForm : uint8_t { kPlain, kSealed, kEncrypted };
BodyForm body_form(DataSecurity security, MessageKind kind);

// Bytes that a message takes on the stream.
constexpr uint64_t framed_bytes(BodyForm form, uint64_t bytes) {
  const uint64_t segments = form == BodyForm::kPlain ? 0 : (bytes + kSegmentBytes - 1) / kSegmentBytes;
  return kFrameHeaderBytes + bytes + segments * kSealBytes;
}

FrameHeader seal_frame_header(Gcm& sealing, const MessageInfo& info);
// Throws CommError("… not a Starling frame …") for another magic or a message that is too long. `from` names the peer.
MessageInfo decode_frame_header(std::span<const std::byte, kFrameHeaderBytes> bytes, const std::string& from);
// The same, and CommError where the header is not what the peer sealed.
MessageInfo open_frame_header(Gcm& opening, const FrameHeader& header, const std::string& from);

// The bytes [at, at + count) of a message of head and body, in order.
template <typename Byte>
std::array<std::span<Byte>, 2> cut_message(std::span<Byte> head, std::span<Byte> body, size_t at,
                                           size_t count) {
  const size_t in_head = at < head.size() ? std::min(count, head.size() - at) : 0;
  const size_t in_body = count - in_head;
  return {head.subspan(std::min(at, head.size()), in_head),
          in_body == 0 ? std::span<Byte>() : body.subspan(at + in_head - head.size(), in_body)};
}

// A segment in pieces, not plain. Encrypted bytes go to `encrypted`, as many as the pieces have; else it may be null.
Seal seal_segment(Gcm& sealing, BodyForm form, std::span<const ConstBytes> pieces, std::byte* encrypted);
// In place: `pieces` holds what came. CommError where it is not what the peer sealed.
void open_segment(Gcm& opening, BodyForm form, std::span<const Bytes> pieces, const Seal& seal,
                  const std::string& from);

// CHECKs that a message may be sent: its length has a limit.
void check_outgoing(const Outgoing& message);
// Throws CommError where `info` is not what the caller waits for.
void check_expected(const MessageInfo& info, const Incoming& expected, const Endpoint& from);

}  // namespace starling
