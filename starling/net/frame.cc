#include "starling/net/frame.h"

#include <fmt/format.h>

#include "starling/base/check.h"
#include "starling/base/error.h"
#include "starling/net/wire.h"

namespace starling {
namespace {

constexpr uint32_t kDataMagic = 0x54414453;     // "SDAT"
constexpr uint32_t kControlMagic = 0x4c544353;  // "SCTL"

const char* name_of(MessageKind kind) {
  return kind == MessageKind::kData ? "data" : "control";
}

}  // namespace

std::array<std::byte, kFrameHeaderBytes> encode_frame_header(const FrameHeader& header) {
  std::array<std::byte, kFrameHeaderBytes> bytes;
  store_le<uint32_t>(&bytes[0], header.info.kind == MessageKind::kData ? kDataMagic : kControlMagic);
  store_le<uint32_t>(&bytes[4], header.info.tag);
  store_le<uint64_t>(&bytes[8], header.info.bytes);
  store_le<uint64_t>(&bytes[16], header.sequence);
  return bytes;
}

FrameHeader decode_frame_header(std::span<const std::byte, kFrameHeaderBytes> bytes, uint64_t expected,
                                const std::string& from) {
  const uint32_t magic = load_le<uint32_t>(&bytes[0]);
  if (magic != kDataMagic && magic != kControlMagic)
    throw CommError(
        fmt::format("{}: not a Starling frame (magic {:#010x}); the stream is damaged", from, magic));
  FrameHeader header;
  header.info.kind = magic == kDataMagic ? MessageKind::kData : MessageKind::kControl;
  header.info.tag = load_le<uint32_t>(&bytes[4]);
  header.info.bytes = load_le<uint64_t>(&bytes[8]);
  header.sequence = load_le<uint64_t>(&bytes[16]);
  if (header.info.kind == MessageKind::kControl && header.info.bytes > kMaxControlBytes)
    throw CommError(fmt::format("{}: a control message of {} bytes, at most {} are allowed", from,
                                header.info.bytes, kMaxControlBytes));
  if (header.sequence != expected)
    throw CommError(fmt::format("{}: message {} came where {} was due; the stream is damaged or replayed",
                                from, header.sequence, expected));
  return header;
}

void check_outgoing(const Outgoing& message) {
  STARLING_CHECK(message.kind == MessageKind::kData || message.bytes() <= kMaxControlBytes,
                 "a control message of {} bytes", message.bytes());
}

void check_expected(const MessageInfo& info, const Incoming& expected, const Endpoint& from) {
  if (info.tag == expected.tag && info.bytes == expected.bytes() && info.kind == expected.kind) return;
  throw CommError(
      fmt::format(
          "{} sent a {} message of {} bytes with tag {:#x} where a {} message of {} bytes with tag {:#x} "
          "was due: the two ranks are not in the same operation",
          from.name(), name_of(info.kind), info.bytes, info.tag, name_of(expected.kind), expected.bytes(),
          expected.tag),
      from.peer_rank());
}

}  // namespace starling
