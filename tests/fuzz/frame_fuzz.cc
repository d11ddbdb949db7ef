// Reads control frames that are sealed with the right key and then damaged as the input says.
//
// The input flips bits, cuts, repeats and moves bytes, and inserts bytes of its own. The reader must return a
// prefix of the sent frames or throw a CommError.
#include <string>
#include <vector>

#include "starling/base/error.h"
#include "starling/net/stream/control_frame.h"
#include "tests/fuzz/input.h"

namespace starling {
namespace {

enum Op : uint8_t { kFrame, kFlip, kCut, kRepeat, kRaw, kLong, kOps };

struct Stream {
  std::string bytes;
  std::vector<std::string> sent;  // bodies of the frames; the index is the tag
};

Stream damaged_stream(FuzzInput& input, const ConnectionKeys& keys) {
  Gcm sealing(keys.receiving, Gcm::Use::kSeal);
  Stream stream;
  std::string last;
  while (!input.empty()) {
    const int op = input.byte() % kOps;
    switch (op) {
      case kFrame:
      case kLong: {
        std::string body = input.text(input.byte() * 8u);
        if (op == kLong) body.resize(kSegmentBytes - 128 + input.byte(), 'x');  // one or two segments
        last = seal_control_frame(sealing, keys.security, static_cast<uint32_t>(stream.sent.size()), body);
        stream.sent.push_back(body);
        stream.bytes += last;
        break;
      }
      case kFlip: {
        const size_t at = input.number();
        if (at < stream.bytes.size()) stream.bytes[at] = static_cast<char>(stream.bytes[at] ^ input.byte());
        break;
      }
      case kCut:
        stream.bytes.resize(stream.bytes.size() - std::min<size_t>(stream.bytes.size(), input.byte()));
        break;
      case kRepeat:
        stream.bytes += last;
        break;
      default:
        stream.bytes += input.text(input.byte());
    }
    if (stream.bytes.size() > 1 << 20) break;
  }
  return stream;
}

void read_all(const Stream& stream, const ConnectionKeys& keys, size_t chunk) {
  ControlFrameReader reader(keys);
  std::string waiting;
  size_t read = 0;
  for (size_t at = 0; at < stream.bytes.size(); at += chunk) {
    waiting += stream.bytes.substr(at, chunk);
    while (const auto frame = reader.next(waiting, "peer")) {
      require_property(read < stream.sent.size() && frame->tag == read && frame->body == stream.sent[read]);
      ++read;
    }
    require_property(waiting.size() <= framed_bytes(BodyForm::kSealed, kMaxControlBytes) + chunk);
  }
}

}  // namespace
}  // namespace starling

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace starling;
  FuzzInput input(data, size);
  ConnectionKeys keys;
  keys.receiving.fill(std::byte{5});
  keys.security = static_cast<DataSecurity>(input.byte() % 3);
  const size_t chunk = 1 + input.byte();
  if (size >= kFrameHeaderBytes) {
    try {
      const auto header = std::as_bytes(std::span(data, size)).last<kFrameHeaderBytes>();
      const MessageInfo info = decode_frame_header(header, "peer");
      require_property(info.bytes <= kMaxDataBytes);
    } catch (const CommError&) {
    }
  }
  try {
    read_all(damaged_stream(input, keys), keys, chunk);
  } catch (const CommError&) {
  }
  return 0;
}
