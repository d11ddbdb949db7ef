// Parses any bytes as heads and bodies of the parameter server's messages. The parser must refuse them with a
// CommError, or return values that are equal after writing and parsing again.
#include <cstring>
#include <string>
#include <vector>

#include "starling/base/error.h"
#include "starling/server/protocol.h"
#include "tests/fuzz/input.h"

namespace starling {
namespace {

template <typename T>
std::vector<T> numbers(FuzzInput& input) {
  const std::string bytes = input.text(1 << 13);
  std::vector<T> out(bytes.size() / sizeof(T));
  if (!out.empty()) std::memcpy(out.data(), bytes.data(), out.size() * sizeof(T));
  return out;
}

void read_head(FuzzInput& input) {
  const std::string bytes = input.text(kHeadBytes);
  HeadBytes head{};
  std::memcpy(head.data(), bytes.data(), bytes.size());
  const ServerMessage message = decode(head, "peer");
  require_property(message.count <= kMaxElements && message.clock >= 0 && message.extra >= 0);
  require_property(name_of(message.code)[0] != '?');
  require_property(encode(message) == head);
}

void read_body(int kind, FuzzInput& input) {
  if (kind == 1) {
    const std::vector<uint64_t> body = numbers<uint64_t>(input);
    const ServerHello hello = decode_hello(body, "peer");
    require_property(encode_hello(hello) == body);
  } else if (kind == 2) {
    const ServerTableStats stats = decode_stats(numbers<int64_t>(input), "peer");
    const std::vector<int64_t> again = encode_stats(stats);
    require_property(encode_stats(decode_stats(again, "peer")) == again);
  } else {
    const std::vector<int64_t> body = numbers<int64_t>(input);
    require_property(body.size() % 4 != 0 ||
                     encode_events(decode_events(body, "peer")).size() == body.size());
  }
}

}  // namespace
}  // namespace starling

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace starling;
  FuzzInput input(data, size);
  const int kind = input.byte() % 4;
  try {
    if (kind == 0) {
      read_head(input);
    } else {
      read_body(kind, input);
    }
  } catch (const CommError&) {
  }
  return 0;
}
