// The frame of a message on a byte stream, all integers little-endian:
//
//   offset 0   magic     u32   "SDAT" for data, "SCTL" for control
//          4   tag       u32   what the message is, chosen by the caller
//          8   length    u64   bytes of the message that follow
//         16   sequence  u64   0, 1, 2 … for each direction of a connection, over both kinds
//         24   message
//     24+length  mac     32 bytes, control only: HMAC-SHA256(key of this direction, the 24 bytes || message)
//
// The sequence is the HMAC's counter: a control frame that is replayed, reflected (the keys of the two
// directions differ), reordered or cut does not verify. A data frame's header is checked for form and order
// only.
#pragma once

#include <array>
#include <cstdint>

#include "starling/net/endpoint.h"

namespace starling {

constexpr size_t kFrameHeaderBytes = 24;
constexpr size_t kMacBytes = 32;

struct FrameHeader {
  MessageInfo info;
  uint64_t sequence = 0;
};

// Bytes that a message takes on the stream.
constexpr uint64_t framed_bytes(MessageKind kind, uint64_t bytes) {
  return kFrameHeaderBytes + bytes + (kind == MessageKind::kControl ? kMacBytes : 0);
}

std::array<std::byte, kFrameHeaderBytes> encode_frame_header(const FrameHeader& header);

// Throws CommError("… not a Starling frame …") for another magic or a control message that is too long, and
// one that states both numbers where the sequence is not `expected`. `from` names the peer in messages.
FrameHeader decode_frame_header(std::span<const std::byte, kFrameHeaderBytes> bytes, uint64_t expected,
                                const std::string& from);

// CHECKs that a message may be sent: control messages have a limit.
void check_outgoing(const Outgoing& message);
// Throws CommError where `info` is not what the caller waits for.
void check_expected(const MessageInfo& info, const Incoming& expected, const Endpoint& from);

}  // namespace starling
