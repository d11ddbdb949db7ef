// Two sides that hold the same key shake hands through somebody who changes bytes as the input says, or talk to somebody who says
// what the input says. Nobody ends with keys who was lied to.
#include <algorithm>
#include <string>

#include "starling/base/error.h"
#include "starling/net/handshake.h"
#include "starling/testing/test_identity.h"
#include "tests/fuzz/input.h"

namespace starling {
namespace {

JobIdentity identity(DataSecurity security) {
  return test_identity("fuzz", security);
}

void feed_all(Handshake& to, const std::string& bytes, size_t chunk) {
  for (size_t at = 0; at < bytes.size() && to.wanted() > 0;) {
    const size_t count = std::min({chunk, to.wanted(), bytes.size() - at});
    to.feed(std::as_bytes(std::span(bytes)).subspan(at, count));
    at += count;
    require_property(to.wanted() <= kMaxUnauthenticatedBytes);
  }
}

std::string take_output(Handshake& from) {
  const std::string bytes = from.output();
  from.clear_output();
  return bytes;
}

// What a message becomes on the way.
std::string tampered(FuzzInput& input, std::string message) {
  for (int edits = input.byte() % 4; edits > 0; --edits) {
    const size_t at = input.byte();
    const char with = static_cast<char>(input.byte());
    if (at >= message.size() || with == 0) continue;
    message[at] = static_cast<char>(message[at] ^ with);
  }
  const size_t cut = input.byte() % 8;
  if (cut > 0 && cut < 4) message.resize(message.size() - std::min(cut, message.size()));
  return message;
}

void shake_hands(FuzzInput& input) {
  const size_t chunk = 1 + input.byte();
  Handshake client(HandshakeRole::kClient, identity(static_cast<DataSecurity>(input.byte() % 3)));
  Handshake server(HandshakeRole::kServer, identity(static_cast<DataSecurity>(input.byte() % 3)));
  std::string original[3], passed[3];
  original[0] = take_output(client);
  feed_all(server, passed[0] = tampered(input, original[0]), chunk);
  original[1] = take_output(server);
  feed_all(client, passed[1] = tampered(input, original[1]), chunk);
  original[2] = take_output(client);
  feed_all(server, passed[2] = tampered(input, original[2]), chunk);
  if (client.done()) require_property(passed[0] == original[0] && passed[1] == original[1]);
  if (!server.done()) return;
  require_property(client.done() && passed[2] == original[2]);
  require_property(client.keys().sending == server.keys().receiving);
}

}  // namespace
}  // namespace starling

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace starling;
  FuzzInput input(data, size);
  try {
    const uint8_t what = input.byte() % 3;
    if (what == 2) {
      shake_hands(input);
      return 0;
    }
    Handshake side(what == 0 ? HandshakeRole::kClient : HandshakeRole::kServer,
                   identity(DataSecurity::kNone));
    const size_t chunk = 1 + input.byte();
    feed_all(side, input.text(size), chunk);
    require_property(!side.done());
  } catch (const CommError&) {
  }
  return 0;
}
