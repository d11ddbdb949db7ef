#include "starling/net/stream/frame.h"

#include <fmt/format.h>

#include "starling/base/check.h"
#include "starling/base/error.h"
#include "starling/net/wire.h"

namespace starling {
namespace {

constexpr uint32_t kDataMagic = 0x54414453;     // "SDAT"
constexpr uint32_t kControlMagic = 0x4c544353;  // "SCTL"
constexpr size_t kPlainHeaderBytes = kFrameHeaderBytes - kSealBytes;

const char* name_of(MessageKind kind) {
  return kind == MessageKind::kData ? "data" : "control";
}

uint64_t longest(MessageKind kind) {
  return kind == MessageKind::kData ? kMaxDataBytes : kMaxControlBytes;
}

[[noreturn]] void throw_not_authentic(const std::string& from, const char* what) {
  throw CommError(
      fmt::format("{}: {} is not authentic: it is damaged, or someone between the two processes who does not "
                  "hold the keys of this connection changed, repeated or removed something",
                  from, what));
}

}  // namespace

BodyForm body_form(DataSecurity security, MessageKind kind) {
  if (security == DataSecurity::kEncrypt) return BodyForm::kEncrypted;
  const bool plain = security == DataSecurity::kNone && kind == MessageKind::kData;
  return plain ? BodyForm::kPlain : BodyForm::kSealed;
}

FrameHeader seal_frame_header(Gcm& sealing, const MessageInfo& info) {
  FrameHeader header;
  store_le<uint32_t>(&header[0], info.kind == MessageKind::kData ? kDataMagic : kControlMagic);
  store_le<uint32_t>(&header[4], info.tag);
  store_le<uint64_t>(&header[8], info.bytes);
  sealing.begin();
  sealing.authenticate(std::span(header).first(kPlainHeaderBytes));
  const Seal seal = sealing.seal();
  std::copy(seal.begin(), seal.end(), header.begin() + kPlainHeaderBytes);
  return header;
}

MessageInfo decode_frame_header(std::span<const std::byte, kFrameHeaderBytes> bytes,
                                const std::string& from) {
  const uint32_t magic = load_le<uint32_t>(&bytes[0]);
  if (magic != kDataMagic && magic != kControlMagic)
    throw CommError(
        fmt::format("{}: not a Starling frame (magic {:#010x}); the stream is damaged", from, magic));
  MessageInfo info;
  info.kind = magic == kDataMagic ? MessageKind::kData : MessageKind::kControl;
  info.tag = load_le<uint32_t>(&bytes[4]);
  info.bytes = load_le<uint64_t>(&bytes[8]);
  if (info.bytes > longest(info.kind))
    throw CommError(fmt::format("{}: a {} message of {} bytes, at most {} are allowed", from,
                                name_of(info.kind), info.bytes, longest(info.kind)));
  return info;
}

MessageInfo open_frame_header(Gcm& opening, const FrameHeader& header, const std::string& from) {
  const MessageInfo info = decode_frame_header(header, from);
  Seal seal;
  std::copy(header.begin() + kPlainHeaderBytes, header.end(), seal.begin());
  opening.begin();
  opening.authenticate(std::span(header).first(kPlainHeaderBytes));
  if (!opening.opens(seal)) throw_not_authentic(from, "the header of a message");
  return info;
}

Seal seal_segment(Gcm& sealing, BodyForm form, std::span<const ConstBytes> pieces, std::byte* encrypted) {
  STARLING_CHECK(form != BodyForm::kPlain, "a plain message has no seals");
  sealing.begin();
  for (const ConstBytes piece : pieces) {
    if (form == BodyForm::kSealed) {
      sealing.authenticate(piece);
    } else {
      sealing.transform(piece, encrypted);
      encrypted += piece.size();
    }
  }
  return sealing.seal();
}

void open_segment(Gcm& opening, BodyForm form, std::span<const Bytes> pieces, const Seal& seal,
                  const std::string& from) {
  STARLING_CHECK(form != BodyForm::kPlain, "a plain message has no seals");
  opening.begin();
  for (const Bytes piece : pieces) {
    if (form == BodyForm::kSealed)
      opening.authenticate(piece);
    else
      opening.transform(piece, piece.data());
  }
  if (!opening.opens(seal)) throw_not_authentic(from, "a message");
}

void check_outgoing(const Outgoing& message) {
  STARLING_CHECK(message.bytes() <= longest(message.kind), "a {} message of {} bytes", name_of(message.kind),
                 message.bytes());
}

void check_expected(const MessageInfo& info, const Incoming& expected, const Endpoint& from) {
  if (info.tag == expected.tag && info.bytes == expected.bytes() && info.kind == expected.kind) return;
  throw CommError(
      fmt::format(
          "{} sent a {} message of {} bytes with tag {:#x} where a {} message of {} bytes with tag {:#x} "
          "was due: the two ranks are not in the same operation; make equal calls in the same order on all "
          "ranks",
          from.name(), name_of(info.kind), info.bytes, info.tag, name_of(expected.kind), expected.bytes(),
          expected.tag),
      from.peer_rank());
}

}  // namespace starling
