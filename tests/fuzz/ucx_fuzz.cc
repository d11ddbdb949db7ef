// Receives messages in the form of UCX that are sealed with the right key and then damaged as the input says.
// The receiver must return what was sent, or throw a CommError. Other inputs are offers of a peer, which must
// be refused with a CommError or be equal when they are written again.
#include <cstring>
#include <string>
#include <vector>

#include "starling/base/error.h"
#include "starling/net/ucx/ucx_message.h"
#include "starling/net/ucx/ucx_offer.h"
#include "tests/fuzz/input.h"

namespace starling {
namespace {

std::string bytes_of(const UcxPieces& pieces) {
  std::string all;
  for (const iovec& part : pieces.parts()) all.append(static_cast<const char*>(part.iov_base), part.iov_len);
  return all;
}

// Writes `text` into the pieces, as far as there is room.
void fill(const UcxPieces& pieces, const std::string& text) {
  size_t at = 0;
  for (const iovec& part : pieces.parts()) {
    const size_t n = std::min(part.iov_len, text.size() - at);
    std::memcpy(part.iov_base, text.data() + at, n);
    at += n;
  }
}

void damage(FuzzInput& input, std::string& bytes) {
  switch (input.byte() % 5) {
    case 0:
      return;
    case 1:
      if (!bytes.empty()) bytes[input.number() % bytes.size()] ^= static_cast<char>(1 << input.byte() % 8);
      return;
    case 2:
      return bytes.resize(bytes.size() - std::min<size_t>(bytes.size(), input.number()));
    case 3:
      bytes += input.text(input.byte());
      return;
    default:
      bytes = input.text(input.number());
  }
}

// Sends and receives one message. Returns false after damage that was found. Only the bytes of data messages
// under `none` are not checked.
bool one_message(FuzzInput& input, DataSecurity security, UcxOutgoing& out, UcxIncoming& in) {
  const std::string head = input.text(input.byte());
  std::string body = input.text(input.number() % 4096);
  if (input.byte() % 4 == 0) body += std::string(input.number(), 'b');
  const MessageKind kind = input.byte() % 2 == 0 ? MessageKind::kData : MessageKind::kControl;
  const uint32_t tag = input.number();
  out.prepare({tag, std::as_bytes(std::span(head)), std::as_bytes(std::span(body)), kind});
  std::string first = bytes_of(out.first()), rest = bytes_of(out.rest()), seals = bytes_of(out.seals());
  damage(input, first);
  if (first.size() > kUcxFirstRoom) first.resize(kUcxFirstRoom);  // UCX cuts what does not fit
  try {
    fill(in.room(), first);
    const MessageInfo info = in.open_first(first.size(), "peer");
    require_property(info.tag == tag && info.bytes == head.size() + body.size());
    std::string got(info.bytes, '\0');
    const auto memory = std::as_writable_bytes(std::span(got));
    const size_t cut = std::min<size_t>(info.bytes, input.byte());
    in.begin({tag, memory.first(cut), memory.subspan(cut), kind});
    damage(input, rest);
    damage(input, seals);
    fill(in.rest(), rest);
    fill(in.seals(), seals);
    in.finish("peer");
    const bool equal = got == head + body;
    require_property(equal || body_form(security, kind) == BodyForm::kPlain);
    return equal;
  } catch (const CommError&) {
    return false;
  }
}

// Reads any bytes as the offer of a peer.
void read_offer(const std::string& body) {
  try {
    const UcxOffer offer = decode_offer(std::as_bytes(std::span(body)), "peer");
    require_property(offer.portion == 0 || offer.portion >= 4096);
    require_property(!offer.address.empty() && encode_offer(offer) == body);
  } catch (const CommError&) {
  }
}

}  // namespace
}  // namespace starling

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace starling;
  FuzzInput input(data, size);
  ConnectionKeys keys;
  keys.sending.fill(std::byte{5});
  keys.receiving.fill(std::byte{5});
  const int kind = input.byte() % 4;
  if (kind == 3) {
    read_offer(input.text(size));
    return 0;
  }
  keys.security = static_cast<DataSecurity>(kind);
  UcxOutgoing out(keys);
  UcxIncoming in(keys);
  for (int i = 0; i < 4 && !input.empty(); ++i) {
    if (!one_message(input, keys.security, out, in)) break;
  }
  return 0;
}
