// The handshake that begins every connection: TLS 1.3 with a pre-shared key that is derived from the job key.
//
//   client → server   prefix_C | hello (the client's claim is the identity of the pre-shared key)
//   server → client   prefix_S | hello, encrypted: the server's claim, proof
//   client → server   encrypted: proof
//
//   prefix = "STARLING" | version u16 | role u8 ('C' or 'S') | two zero bytes
//   claim  = job, data security, service, group, caller and target (parties.h)
//
// The pre-shared key is HKDF-SHA256(job key, salt = the client's claim). TLS proves that both sides have it,
// makes fresh keys by (EC)DHE, and refuses replays, reflections, truncation and changed bytes
// (tls_session.h). When both proofs are complete, each side compares the other's claim with its own. If the
// job, the setting or the target differs, both learn it before the first frame (keys()). The frames have one
// key per direction, which TLS exports. TLS itself carries nothing after the handshake. The first ten bytes
// of a prefix have the same form in every version, so that versions can name each other.
//
// Handshake is a state machine that takes bytes and returns bytes. It works on any stream and in a poll loop.
// It never asks for more than kMaxUnauthenticatedBytes, and never reads past the end of the handshake. What
// follows on the stream is left for the frames.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "starling/net/security/crypto.h"
#include "starling/net/security/job_key.h"
#include "starling/net/security/parties.h"

namespace starling {

class TlsSettings;

// HandshakeRole says which side this is. The value is the byte in the prefix.
enum class HandshakeRole : uint8_t { kClient = 'C', kServer = 'S' };

constexpr uint16_t kProtocolVersion = 3;
// The most bytes that are read from a peer, or kept for it, before the peer has proved the key.
constexpr size_t kMaxUnauthenticatedBytes = 4096;
constexpr size_t kMaxJobIdBytes = 128;

// ConnectionKeys protects the frames of one connection (net/stream/frame.h), seen from one end. The
// destructor wipes the keys.
struct ConnectionKeys {
  Digest sending{};
  Digest receiving{};
  Digest further{};  // equal on both sides: a secret for further connections of the two (net/ucx)
  DataSecurity security = DataSecurity::kNone;
  std::chrono::milliseconds dead_after = kDeadAfter;  // JobIdentity::dead_after of this end
  std::string caller;  // on the listener's side: Parties::caller, as the peer has proved it
  ~ConnectionKeys();
};

// Returns the settings of TLS that all handshakes of a role may share. Errors: Error (kInternal) if OpenSSL
// fails.
std::shared_ptr<const TlsSettings> make_tls_settings(HandshakeRole role);
// Errors: ConfigError if the job id is empty, too long or not printable.
void check_job_id(const JobIdentity& identity);

// Handshake is one side's state machine. The top of this file describes the protocol.
class Handshake {
 public:
  // If `settings` is null, the handshake makes its own, which takes longer than all other steps. `version` is
  // for tests. Errors: ConfigError if the job id is empty, too long or not printable.
  Handshake(HandshakeRole role, const JobIdentity& identity, const Parties& parties,
            std::shared_ptr<const TlsSettings> settings = nullptr, uint16_t version = kProtocolVersion);
  ~Handshake();
  Handshake(Handshake&&) noexcept;
  Handshake& operator=(Handshake&&) noexcept;

  // The bytes to be sent, in order. The caller sends all of them and then calls clear_output().
  // After an error they may hold bytes that tell the peer the reason. The caller then sends what the socket
  // takes and closes the connection.
  const std::string& output() const;
  // Removes the output, after it was sent.
  void clear_output();

  // How many bytes are needed next. It is 0 when the handshake is complete, although there may still be
  // output.
  size_t wanted() const;
  // Takes at most wanted() bytes.
  // Errors: CommError ("not a Starling peer …", "protocol version 2, ours is 3", "another job", "wrong job
  // key").
  void feed(std::span<const std::byte> bytes);
  // Whether the handshake is complete.
  bool done() const;
  // Returns what an end of the stream means now, for messages: "closed the connection without …".
  const char* meaning_of_end() const;

  // Returns the keys. Call it only when done() is true and the output has been sent, so that the peer can
  // complete its side, too. Errors: CommError that names both settings if the peer protects data differently;
  // CommError that names both targets if the client called another process than the server.
  ConnectionKeys keys() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace starling
