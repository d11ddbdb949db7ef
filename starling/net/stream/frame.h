// The frame of a message on a byte stream. All integers are little-endian:
//
//   offset 0   magic   u32   "SDAT" for data, "SCTL" for control
//          4   tag     u32   what the message is, chosen by the caller
//          8   length  u64   bytes of the message
//         16   seal    16 bytes: authenticates the 16 bytes before it
//         32   message
//
// A message is plain, sealed or encrypted. Data messages are plain under `none`, sealed under `auth` and
// encrypted under `encrypt`. Control messages are sealed, and encrypted under `encrypt`.
// A message that is not plain consists of segments of 64 KiB. The last segment may be shorter. A seal of 16
// bytes follows each segment. A sealed segment is authenticated but not hidden.
//
// Each header and each segment is a unit of net/security/gcm.h under the key of its direction. Units are
// numbered from the beginning of the connection. A frame that is replayed, reflected, reordered or cut
// therefore does not open. A length is known to be the peer's before memory is allocated for it. At most one
// segment is in memory unchecked. Under `none`, only the bytes of data messages are not checked.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "starling/net/endpoint.h"
#include "starling/net/security/data_security.h"
#include "starling/net/security/gcm.h"

namespace starling {

constexpr size_t kFrameHeaderBytes = 32;
constexpr size_t kSegmentBytes = 64 * 1024;
// The largest data message.
constexpr uint64_t kMaxDataBytes = uint64_t{1} << 48;

// FrameHeader is the encoded header.
using FrameHeader = std::array<std::byte, kFrameHeaderBytes>;

// BodyForm says how the bytes of a message are protected.
enum class BodyForm : uint8_t { kPlain, kSealed, kEncrypted };
// Returns the form of a message of this kind under this setting.
BodyForm body_form(DataSecurity security, MessageKind kind);

// Returns how many bytes a message takes on the stream.
constexpr uint64_t framed_bytes(BodyForm form, uint64_t bytes) {
  const uint64_t segments = form == BodyForm::kPlain ? 0 : (bytes + kSegmentBytes - 1) / kSegmentBytes;
  return kFrameHeaderBytes + bytes + segments * kSealBytes;
}

// Returns the encoded header with its seal.
FrameHeader seal_frame_header(Gcm& sealing, const MessageInfo& info);
// Decodes a header without checking its seal. `from` names the peer. Errors: CommError if the magic is
// unknown ("… not a Starling frame …") or the message is too long.
MessageInfo decode_frame_header(std::span<const std::byte, kFrameHeaderBytes> bytes, const std::string& from);
// Decodes a header and checks its seal. Errors: as decode_frame_header(), and CommError if the peer has not
// sealed this header.
MessageInfo open_frame_header(Gcm& opening, const FrameHeader& header, const std::string& from);

// Returns the bytes [at, at + count) of a message that consists of a head and a body.
template <typename Byte>
std::array<std::span<Byte>, 2> cut_message(std::span<Byte> head, std::span<Byte> body, size_t at,
                                           size_t count) {
  const size_t in_head = at < head.size() ? std::min(count, head.size() - at) : 0;
  const size_t in_body = count - in_head;
  return {head.subspan(std::min(at, head.size()), in_head),
          in_body == 0 ? std::span<Byte>() : body.subspan(at + in_head - head.size(), in_body)};
}

// Seals a segment that is not plain and consists of pieces. If it is encrypted, the encrypted bytes go to
// `encrypted`, which has room for all pieces. Otherwise `encrypted` may be null.
Seal seal_segment(Gcm& sealing, BodyForm form, std::span<const ConstBytes> pieces, std::byte* encrypted);
// Opens a received segment in place. Errors: CommError if the peer has not sealed this segment.
void open_segment(Gcm& opening, BodyForm form, std::span<const Bytes> pieces, const Seal& seal,
                  const std::string& from);

// CHECKs that the message is not too long to be sent.
void check_outgoing(const Outgoing& message);
// Throws CommError if `info` does not describe the message that the caller expects.
void check_expected(const MessageInfo& info, const Incoming& expected, const Endpoint& from);

}  // namespace starling
