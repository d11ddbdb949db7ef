// TlsSession: one side of a TLS 1.3 handshake (RFC 8446) by OpenSSL, over memory instead of a socket.
//
// Both sides must hold an external pre-shared key, which the client names by an identity text. The key
// exchange adds X25519 (PSK with (EC)DHE). An attacker who learns the pre-shared key later can therefore not
// derive the keys of the connection. The cipher suite is TLS_AES_256_GCM_SHA384. Certificates, tickets, early
// data and older versions are refused. The server states a text of its own in its encrypted extensions.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "starling/net/security/crypto.h"

namespace starling {

// TlsSettings holds what all sessions of one side have in common. It is immutable and may be shared by
// threads. Making one costs more than a handshake. Errors: Error (kInternal) if OpenSSL fails.
class TlsSettings {
 public:
  enum class Side { kClient, kServer };

  explicit TlsSettings(Side side);
  ~TlsSettings();
  TlsSettings(const TlsSettings&) = delete;
  TlsSettings& operator=(const TlsSettings&) = delete;

 private:
  friend class TlsSession;
  struct Parts;
  Side side_;
  std::unique_ptr<Parts> parts_;
};

// TlsSession may be used by one thread at a time.
class TlsSession {
 public:
  // Returns the pre-shared key for an identity. Returns nothing to refuse it.
  using KeyFor = std::function<std::optional<Digest>(std::string_view identity)>;

  // `identity` names the key of a client and is empty on a server. `statement` is the text that a server
  // states, and is empty on a client.
  TlsSession(std::shared_ptr<const TlsSettings> settings, std::string identity, std::string statement,
             KeyFor key_for);
  ~TlsSession();
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  // Takes one whole TLS record, or nothing to let a client begin. Appends the bytes to be sent to `out`.
  // After an error they are the alert that tells the peer the reason. Returns whether the handshake is
  // complete. Errors: CommError that says why the handshake failed.
  bool step(std::span<const std::byte> record, std::string& out);
  // What the server states. On a client it is authentic once the handshake is complete.
  const std::string& statement() const;
  // Fills `out` with secret bytes that only the two ends of this connection have. Call it when the handshake
  // is complete. Equal labels give equal bytes on both sides.
  void export_secret(std::string_view label, std::span<std::byte> out) const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace starling
