// The handshake that opens every connection: each side proves to the other that it holds the job key, without sending
// it. A machine of states that is fed bytes and hands out bytes, so it works on any stream and in a poll loop.
//
//   greeting = "STARLING" | version u16 | role u8 ('C' or 'S') | n u8 | security u8 | job id (n bytes) | nonce (32 random bytes)
//   client → server   greeting_C
//   server → client   greeting_S | HMAC(key, "starling server proof" | greeting_C | greeting_S)
//   client → server   HMAC(key, "starling client proof" | greeting_C | greeting_S)
//
// Version, role, job id, data_security.h's setting and both nonces are thus under both HMACs (SHA-256); the two proofs begin
// differently and the roles must differ, so nothing that one side said can be reflected to it, fresh nonces make replays
// worthless, and nobody between the two can talk them into a lower version or setting. Sides with different settings both
// learn so after the proofs (keys()), before the first frame.
// The keys of the connection, one a direction, are HKDF-SHA256(key, salt = greeting_C | greeting_S, "starling …").
// The first ten bytes of a greeting keep their form in every version, so that versions can name each other.
//
// A machine never asks for more bytes than the greeting and the proof have (173 + 32 at most), and never reads past
// its end: what follows on the stream is left for the frames.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "starling/net/crypto.h"
#include "starling/net/job_key.h"

namespace starling {

enum class HandshakeRole : uint8_t { kClient = 'C', kServer = 'S' };

constexpr uint16_t kProtocolVersion = 2;
// All that is read from, or kept for, a peer before it has proved the key.
constexpr size_t kMaxUnauthenticatedBytes = 4096;
constexpr size_t kMaxJobIdBytes = 128;

// What protects the frames of one connection (frame.h), seen from one end. Wiped when it goes.
struct ConnectionKeys {
  Digest sending{};
  Digest receiving{};
  DataSecurity security = DataSecurity::kNone;
  ~ConnectionKeys();
};

class Handshake {
 public:
  // ConfigError if the job id is empty, too long or not printable. `version` is for tests.
  Handshake(HandshakeRole role, const JobIdentity& identity, uint16_t version = kProtocolVersion);

  // What is to be sent, in order; the caller sends all of it and then calls clear_output(). After an error it may hold a
  // greeting that tells the peer our version: send what the socket takes, then close.
  const std::string& output() const { return output_; }
  void clear_output() { output_.clear(); }

  // Bytes that are needed next; 0 when the handshake is complete (output may still be there).
  size_t wanted() const { return wanted_; }
  // Takes bytes, wanted() at most. CommError: "not a Starling peer …", "protocol version 2, ours is 1",
  // "another job", "wrong job key".
  void feed(std::span<const std::byte> bytes);
  bool done() const { return state_ == State::kDone; }
  // What an end of the stream means now, for messages: "closed the connection before its greeting", …
  const char* meaning_of_end() const;

  // Only when done, and when the output has been sent, so that the peer gets as far. CommError naming both settings where
  // the peer protects data otherwise than we do.
  ConnectionKeys keys() const;

 private:
  enum class State { kPrefix, kRest, kProof, kDone };

  std::string greeting(uint16_t version) const;
  Digest proof(HandshakeRole of) const;
  void take_prefix();
  void take_greeting();
  void take_proof();
  void await(State state, size_t bytes);

  HandshakeRole role_;
  JobIdentity identity_;
  uint16_t version_;
  Digest nonce_;
  State state_ = State::kPrefix;
  size_t wanted_ = 0;
  DataSecurity their_security_ = DataSecurity::kNone;
  std::string input_;  // the message that is being received
  std::string output_;
  std::string client_greeting_;
  std::string server_greeting_;
};

}  // namespace starling
