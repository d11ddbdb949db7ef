// Two sides that hold one job key perform the handshake while an attacker changes bytes as the input says. Or
// a side receives the input's bytes directly. A side that received a changed message must not complete the
// handshake, except for a byte that has no meaning. Or the input is a claim, which must come back as it was
// if it is accepted.
#include <algorithm>
#include <string>

#include "starling/base/error.h"
#include "starling/net/security/handshake.h"
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

Parties parties(int target) {
  return {.service = "fuzz", .target = target == 0 ? "rank 0" : "rank 1", .caller = "rank 2"};
}

// Making the settings of TLS costs more than a handshake.
Handshake side_of(HandshakeRole role, DataSecurity security, int target) {
  static const auto client = make_tls_settings(HandshakeRole::kClient);
  static const auto server = make_tls_settings(HandshakeRole::kServer);
  return {role, identity(security), parties(target), role == HandshakeRole::kClient ? client : server};
}

void check_claim(const std::string& text) {
  const auto claim = decode_claim(text);
  if (claim) require_property(encode_claim(*claim).size() <= kMaxClaimBytes + 512);
  if (claim && text.find("hash:") == std::string::npos && text.size() < 200)
    require_property(encode_claim(*claim) == text);
}

std::string take_output(Handshake& from) {
  const std::string bytes = from.output();
  from.clear_output();
  return bytes;
}

// Returns the message as the attacker changes it.
std::string tampered(FuzzInput& input, std::string message) {
  for (int edits = input.byte() % 4; edits > 0; --edits) {
    const size_t at = input.byte() + 256 * (input.byte() % 2);
    const char with = static_cast<char>(input.byte());
    if (at >= message.size() || with == 0) continue;
    message[at] = static_cast<char>(message[at] ^ with);
  }
  const size_t cut = input.byte() % 8;
  if (cut > 0 && cut < 4) message.resize(message.size() - std::min(cut, message.size()));
  return message;
}

// Returns true if a message is as it was sent, apart from the version in the header of its first record.
// This version has no meaning in TLS 1.3. It is not authenticated, because the first record is not encrypted
// (RFC 8446, section 5.1).
bool is_original(std::string message, const std::string& original) {
  constexpr size_t kMinorVersion = 15;  // after magic, version, role, two zero bytes, type and major version
  if (message.size() > kMinorVersion && original.size() > kMinorVersion)
    message[kMinorVersion] = original[kMinorVersion];
  return message == original;
}

void shake_hands(FuzzInput& input) {
  const size_t chunk = 1 + input.byte();
  const auto of_client = static_cast<DataSecurity>(input.byte() % 3);
  const auto of_server = static_cast<DataSecurity>(input.byte() % 3);
  const int called = input.byte() % 2, reached = input.byte() % 2;
  Handshake client = side_of(HandshakeRole::kClient, of_client, called);
  Handshake server = side_of(HandshakeRole::kServer, of_server, reached);
  std::string original[3], passed[3];
  original[0] = take_output(client);
  feed_all(server, passed[0] = tampered(input, original[0]), chunk);
  original[1] = take_output(server);
  feed_all(client, passed[1] = tampered(input, original[1]), chunk);
  original[2] = take_output(client);
  feed_all(server, passed[2] = tampered(input, original[2]), chunk);
  if (client.done())
    require_property(is_original(passed[0], original[0]) && is_original(passed[1], original[1]));
  if (!server.done()) return;
  require_property(client.done() && passed[2] == original[2]);
  bool agreed = false;
  try {
    agreed = client.keys().sending == server.keys().receiving;
  } catch (const CommError&) {
    require_property(of_client != of_server || called != reached);
    throw;
  }
  require_property(agreed && of_client == of_server && called == reached);
}

}  // namespace
}  // namespace starling

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace starling;
  FuzzInput input(data, size);
  try {
    const uint8_t what = input.byte() % 4;
    if (what == 3) {
      check_claim(input.text(size));
      return 0;
    }
    if (what == 2) {
      shake_hands(input);
      return 0;
    }
    Handshake side =
        side_of(what == 0 ? HandshakeRole::kClient : HandshakeRole::kServer, DataSecurity::kNone, 0);
    const size_t chunk = 1 + input.byte();
    feed_all(side, input.text(size), chunk);
    require_property(!side.done());
  } catch (const CommError&) {
  }
  return 0;
}
