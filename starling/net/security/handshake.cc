#include "starling/net/security/handshake.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "starling/base/check.h"
#include "starling/base/error.h"
#include "starling/net/security/tls_session.h"

namespace starling {
namespace {

constexpr char kMagic[] = "STARLING";
constexpr size_t kMagicBytes = 8;
constexpr size_t kPrefixBytes = kMagicBytes + 5;  // magic, version, role, two zero bytes
constexpr size_t kRecordHeaderBytes = 5;          // type, version, length of a record of TLS
static_assert(kPrefixBytes + kMaxClaimBytes + 512 < kMaxUnauthenticatedBytes);

std::span<const std::byte> span_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

bool printable(const std::string& text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 127; });
}

std::string in_quotes(const std::string& text) {
  return printable(text) ? "'" + text + "'" : "(not printable)";
}

HandshakeRole other(HandshakeRole role) {
  return role == HandshakeRole::kClient ? HandshakeRole::kServer : HandshakeRole::kClient;
}

std::string prefix_of(HandshakeRole role, uint16_t version) {
  std::string text(kMagic, kMagicBytes);
  text += static_cast<char>(version & 0xff);
  text += static_cast<char>(version >> 8);
  text += static_cast<char>(role);
  return text.append(2, '\0');
}

void check_prefix(HandshakeRole ours, uint16_t our_version, const std::string& prefix) {
  const auto at = [&](size_t i) { return static_cast<uint8_t>(prefix[i]); };
  const unsigned version = at(kMagicBytes) | at(kMagicBytes + 1) << 8;
  if (version != our_version)
    throw CommError(
        fmt::format("the peer speaks protocol version {}, ours is {}: install the same Starling on all hosts",
                    version, our_version));
  const auto role = static_cast<HandshakeRole>(at(kMagicBytes + 2));
  if (role == ours)
    throw CommError(
        "not a Starling peer: the peer sent the role of this side; the greeting may have been reflected");
  if (role != other(ours)) throw CommError("not a Starling peer: it has no known role");
  if (at(kMagicBytes + 3) != 0 || at(kMagicBytes + 4) != 0)
    throw CommError("not a Starling peer: its greeting has another form");
}

// Returns the length of a record of TLS, which may have at most `room` bytes.
size_t check_record_header(const std::string& header, size_t room) {
  constexpr uint8_t kAlert = 21, kApplicationData = 23, kMajorVersion = 3;
  const auto at = [&](size_t i) { return static_cast<uint8_t>(header[i]); };
  const size_t length = static_cast<size_t>(at(3)) << 8 | at(4);
  const bool known = at(0) >= kAlert && at(0) <= kApplicationData && at(1) == kMajorVersion &&
                     (at(2) == 1 || at(2) == 3);  // a first hello says 3.1, all else 3.3
  if (!known || length == 0) throw CommError("not a Starling peer: the peer did not send a TLS record");
  if (length > room)
    throw CommError(
        fmt::format("not a Starling peer: its handshake has more than {} bytes", kMaxUnauthenticatedBytes));
  return length;
}

}  // namespace

ConnectionKeys::~ConnectionKeys() {
  wipe(sending);
  wipe(receiving);
  wipe(further);
}

std::shared_ptr<const TlsSettings> make_tls_settings(HandshakeRole role) {
  return std::make_shared<const TlsSettings>(role == HandshakeRole::kClient ? TlsSettings::Side::kClient
                                                                            : TlsSettings::Side::kServer);
}

void check_job_id(const JobIdentity& identity) {
  if (identity.job_id.empty() || identity.job_id.size() > kMaxJobIdBytes || !printable(identity.job_id))
    throw ConfigError("job id",
                      fmt::format("{} is not a job id; use 1 to {} printable characters without spaces",
                                  in_quotes(identity.job_id), kMaxJobIdBytes));
}

struct Handshake::Parts {
  enum class State { kPrefix, kRecordHeader, kRecord, kDone };

  void await(State next, size_t bytes) {
    state = next;
    wanted = bytes;
  }
  void take_prefix();
  void begin_tls();
  void step(const std::string& record);
  std::optional<Digest> key_for(std::string_view claim);
  void take_claim(std::optional<Claim> claim);

  HandshakeRole role;
  JobIdentity identity;
  Claim ours;
  std::shared_ptr<const TlsSettings> settings;
  uint16_t version;
  State state = State::kPrefix;
  size_t wanted = kPrefixBytes;
  size_t received = 0;
  std::optional<Claim> theirs = {};
  std::string refusal = {};  // why the peer's claim cannot be accepted
  std::string input = {};    // the part that is being received
  std::string output = {};
  std::unique_ptr<TlsSession> tls = {};
};

// Keeps the peer's claim. A claim is not proved yet.
void Handshake::Parts::take_claim(std::optional<Claim> claim) {
  if (!claim)
    refusal = "not a Starling peer: its claim is malformed";
  else if (claim->job_id != ours.job_id)
    refusal = fmt::format(
        "the peer belongs to job {}, this process to {}: two jobs use one address; choose another port",
        in_quotes(claim->job_id), in_quotes(ours.job_id));
  else
    theirs = std::move(claim);
}

std::optional<Digest> Handshake::Parts::key_for(std::string_view claim) {
  if (role == HandshakeRole::kServer) {
    take_claim(decode_claim(claim));
    if (!theirs) return std::nullopt;
  }
  return hkdf_sha256(identity.key.bytes(), span_of(claim), "starling tls");
}

void Handshake::Parts::begin_tls() {
  if (!settings) settings = make_tls_settings(role);
  const bool client = role == HandshakeRole::kClient;
  const std::string claim = encode_claim(ours);
  tls = std::make_unique<TlsSession>(settings, client ? claim : "", client ? "" : claim,
                                     [this](std::string_view text) { return key_for(text); });
}

void Handshake::Parts::take_prefix() {
  const bool server = role == HandshakeRole::kServer;
  if (server) output = prefix_of(role, version);  // a client of another version can then name both versions
  check_prefix(role, version, input);
  input.clear();
  if (server) begin_tls();
  await(State::kRecordHeader, kRecordHeaderBytes);
}

void Handshake::Parts::step(const std::string& record) {
  bool complete = false;
  try {
    complete = tls->step(span_of(record), output);
  } catch (const CommError&) {
    if (refusal.empty()) throw;
  }
  if (!refusal.empty()) throw CommError(refusal);
  if (!complete) return await(State::kRecordHeader, kRecordHeaderBytes);
  if (role == HandshakeRole::kClient) take_claim(decode_claim(tls->statement()));
  if (!refusal.empty()) throw CommError(refusal);
  if (!theirs) throw CommError("not a Starling peer: it sent no claim");
  await(State::kDone, 0);
}

Handshake::Handshake(HandshakeRole role, const JobIdentity& identity, const Parties& parties,
                     std::shared_ptr<const TlsSettings> settings, uint16_t version)
    : parts_(std::make_unique<Parts>(Parts{.role = role,
                                           .identity = identity,
                                           .ours = {identity.job_id, identity.security, parties},
                                           .settings = std::move(settings),
                                           .version = version})) {
  check_job_id(identity);
  if (role == HandshakeRole::kServer) {
    parts_->ours.parties.caller.clear();
    return;
  }
  parts_->begin_tls();
  parts_->output = prefix_of(role, version);
  parts_->tls->step({}, parts_->output);
}

Handshake::~Handshake() = default;
Handshake::Handshake(Handshake&&) noexcept = default;
Handshake& Handshake::operator=(Handshake&&) noexcept = default;

const std::string& Handshake::output() const {
  return parts_->output;
}

void Handshake::clear_output() {
  parts_->output.clear();
}

size_t Handshake::wanted() const {
  return parts_->wanted;
}

bool Handshake::done() const {
  return parts_->state == Parts::State::kDone;
}

void Handshake::feed(std::span<const std::byte> bytes) {
  Parts& p = *parts_;
  STARLING_CHECK(bytes.size() <= p.wanted, "the handshake was fed {} bytes and wanted {}", bytes.size(),
                 p.wanted);
  p.input.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  p.wanted -= bytes.size();
  p.received += bytes.size();
  // Garbage is refused at its first byte, not after a whole prefix.
  if (p.state == Parts::State::kPrefix &&
      std::memcmp(p.input.data(), kMagic, std::min(p.input.size(), kMagicBytes)) != 0)
    throw CommError("not a Starling peer: it does not begin with our greeting");
  if (p.wanted > 0 || bytes.empty()) return;
  switch (p.state) {
    case Parts::State::kPrefix:
      return p.take_prefix();
    case Parts::State::kRecordHeader:
      return p.await(Parts::State::kRecord,
                     check_record_header(
                         p.input, kMaxUnauthenticatedBytes - std::min(p.received, kMaxUnauthenticatedBytes)));
    case Parts::State::kRecord:
      return p.step(std::exchange(p.input, {}));
    case Parts::State::kDone:
      return;
  }
}

const char* Handshake::meaning_of_end() const {
  if (parts_->state == Parts::State::kPrefix && parts_->role == HandshakeRole::kClient)
    return "closed the connection without a greeting: it is not a Starling process, has too many "
           "connections, or belongs to another job; see its log";
  return "closed the connection in the middle of the handshake; see its log";
}

ConnectionKeys Handshake::keys() const {
  STARLING_CHECK(done(), "keys before the handshake is complete");
  const Parts& p = *parts_;
  const Claim& theirs = *p.theirs;
  if (theirs.security != p.ours.security)
    throw CommError(
        fmt::format("the peer uses --net-security {} and this process uses {}: give all processes one value "
                    "(comm.security)",
                    security_name(theirs.security), security_name(p.ours.security)));
  const bool client = p.role == HandshakeRole::kClient;
  const Parties& called = client ? p.ours.parties : theirs.parties;
  const Parties& reached = client ? theirs.parties : p.ours.parties;
  if (!is_called(called, reached))
    throw CommError(
        fmt::format("the connection called {} and reached {}: its address is out of date, or "
                    "somebody on the network redirects connections",
                    describe_target(called), describe_target(reached)));
  std::array<Digest, 3> secrets;
  p.tls->export_secret("EXPORTER-starling-frames", std::as_writable_bytes(std::span(secrets)));
  ConnectionKeys keys;
  keys.security = p.ours.security;
  keys.dead_after = p.identity.dead_after;
  if (!client) keys.caller = called.caller;
  keys.sending = client ? secrets[0] : secrets[1];
  keys.receiving = client ? secrets[1] : secrets[0];
  keys.further = secrets[2];
  wipe(std::as_writable_bytes(std::span(secrets)));
  return keys;
}

}  // namespace starling
