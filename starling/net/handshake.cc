#include "starling/net/handshake.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "starling/base/check.h"
#include "starling/base/error.h"

namespace starling {
namespace {

constexpr char kMagic[] = "STARLING";
constexpr size_t kMagicBytes = 8;
constexpr size_t kPrefixBytes = kMagicBytes + 5;  // magic, version, role, length of the job id, security
constexpr size_t kNonceBytes = sizeof(Digest);
static_assert(kPrefixBytes + 255 + kNonceBytes + sizeof(Digest) < kMaxUnauthenticatedBytes);

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

bool printable(const std::string& text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 127; });
}

std::string quoted(const std::string& text) {
  return printable(text) ? "'" + text + "'" : "(not printable)";
}

HandshakeRole other(HandshakeRole role) {
  return role == HandshakeRole::kClient ? HandshakeRole::kServer : HandshakeRole::kClient;
}

}  // namespace

ConnectionKeys::~ConnectionKeys() {
  wipe(sending);
  wipe(receiving);
}

Handshake::Handshake(HandshakeRole role, const JobIdentity& identity, uint16_t version)
    : role_(role), identity_(identity), version_(version) {
  if (identity.job_id.empty() || identity.job_id.size() > kMaxJobIdBytes || !printable(identity.job_id))
    throw ConfigError("job id", fmt::format("{} is no job id: 1 to {} printable characters without spaces",
                                            quoted(identity.job_id), kMaxJobIdBytes));
  fill_random(nonce_);
  await(State::kPrefix, kPrefixBytes);
  if (role_ == HandshakeRole::kClient) output_ = client_greeting_ = greeting(version_);
}

std::string Handshake::greeting(uint16_t version) const {
  std::string text(kMagic, kMagicBytes);
  text += static_cast<char>(version & 0xff);
  text += static_cast<char>(version >> 8);
  text += static_cast<char>(role_);
  text += static_cast<char>(identity_.job_id.size());
  text += static_cast<char>(identity_.security);
  text += identity_.job_id;
  text.append(reinterpret_cast<const char*>(nonce_.data()), nonce_.size());
  return text;
}

Digest Handshake::proof(HandshakeRole of) const {
  const std::string label = of == HandshakeRole::kClient ? "starling client proof" : "starling server proof";
  return hmac_sha256(identity_.key.bytes(),
                     {bytes_of(label), bytes_of(client_greeting_), bytes_of(server_greeting_)});
}

void Handshake::await(State state, size_t bytes) {
  state_ = state;
  wanted_ = bytes;
}

void Handshake::feed(std::span<const std::byte> bytes) {
  STARLING_CHECK(bytes.size() <= wanted_, "{} bytes fed, {} wanted", bytes.size(), wanted_);
  input_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  wanted_ -= bytes.size();
  // Garbage is refused by its first byte, not when a whole greeting's worth of it has come.
  if (state_ == State::kPrefix &&
      std::memcmp(input_.data(), kMagic, std::min(input_.size(), kMagicBytes)) != 0)
    throw CommError("not a Starling peer: it does not begin with our greeting");
  if (wanted_ > 0 || bytes.empty()) return;
  switch (state_) {
    case State::kPrefix:
      return take_prefix();
    case State::kRest:
      return take_greeting();
    case State::kProof:
      return take_proof();
    case State::kDone:
      return;
  }
}

void Handshake::take_prefix() {
  const auto at = [&](size_t i) { return static_cast<uint8_t>(input_[i]); };
  const unsigned version = at(kMagicBytes) | at(kMagicBytes + 1) << 8;
  if (version != version_) {
    if (role_ == HandshakeRole::kServer)
      output_ = greeting(version_);  // so that the client can name both versions
    throw CommError(
        fmt::format("the peer speaks protocol version {}, ours is {}: install the same Starling on "
                    "all hosts",
                    version, version_));
  }
  const auto role = static_cast<HandshakeRole>(at(kMagicBytes + 2));
  if (role == role_) throw CommError("not a Starling peer: it claims our own role (a reflected greeting?)");
  if (role != other(role_)) throw CommError("not a Starling peer: it has no known role");
  const size_t id_bytes = at(kMagicBytes + 3);
  if (id_bytes == 0 || id_bytes > kMaxJobIdBytes)
    throw CommError(fmt::format("not a Starling peer: a job id of {} bytes", id_bytes));
  const unsigned security = at(kMagicBytes + 4);
  if (security > static_cast<unsigned>(DataSecurity::kEncrypt))
    throw CommError(fmt::format("not a Starling peer: security setting {}", security));
  their_security_ = static_cast<DataSecurity>(security);
  const size_t proof_bytes = role_ == HandshakeRole::kClient ? sizeof(Digest) : 0;
  await(State::kRest, id_bytes + kNonceBytes + proof_bytes);
}

void Handshake::take_greeting() {
  const size_t id_bytes = static_cast<uint8_t>(input_[kMagicBytes + 3]);
  const std::string theirs = input_.substr(0, kPrefixBytes + id_bytes + kNonceBytes);
  const std::string id = theirs.substr(kPrefixBytes, id_bytes);
  if (id != identity_.job_id)
    throw CommError(fmt::format("the peer belongs to job {}, we to {}: two jobs use one address", quoted(id),
                                quoted(identity_.job_id)));
  if (std::memcmp(theirs.data() + kPrefixBytes + id_bytes, nonce_.data(), kNonceBytes) == 0)
    throw CommError("not a Starling peer: it repeats our own nonce (a reflected greeting?)");
  if (role_ == HandshakeRole::kServer) {
    client_greeting_ = theirs;
    server_greeting_ = greeting(version_);
    const Digest ours = proof(HandshakeRole::kServer);
    output_ = server_greeting_ + std::string(reinterpret_cast<const char*>(ours.data()), ours.size());
    input_.clear();
    await(State::kProof, sizeof(Digest));
    return;
  }
  server_greeting_ = theirs;
  input_.erase(0, theirs.size());
  take_proof();
  const Digest ours = proof(HandshakeRole::kClient);
  output_.assign(reinterpret_cast<const char*>(ours.data()), ours.size());
}

void Handshake::take_proof() {
  if (!equal_in_constant_time(bytes_of(input_), proof(other(role_))))
    throw CommError(
        "wrong job key: the peer could not prove that it holds ours; give all ranks the same key file");
  input_.clear();
  await(State::kDone, 0);
}

const char* Handshake::meaning_of_end() const {
  if (state_ == State::kProof) return "refused our proof and left: its job key differs from ours";
  if (role_ == HandshakeRole::kServer) return "closed the connection in the middle of its greeting";
  return "closed the connection without a greeting: it is no Starling peer, has too many connections, or its "
         "job differs "
         "from ours (its log tells)";
}

ConnectionKeys Handshake::keys() const {
  STARLING_CHECK(done(), "keys before the handshake is complete");
  if (their_security_ != identity_.security)
    throw CommError(fmt::format(
        "the peer has --net-security {}, we have {}: give all processes of the job the same (comm.security)",
        security_name(their_security_), security_name(identity_.security)));
  const std::string salt = client_greeting_ + server_greeting_;
  ConnectionKeys keys;
  keys.security = identity_.security;
  keys.sending = hkdf_sha256(identity_.key.bytes(), bytes_of(salt), "starling client to server");
  keys.receiving = hkdf_sha256(identity_.key.bytes(), bytes_of(salt), "starling server to client");
  if (role_ == HandshakeRole::kServer) std::swap(keys.sending, keys.receiving);
  return keys;
}

}  // namespace starling
