// AES-256-GCM (NIST SP 800-38D) by OpenSSL, for one direction of a connection.
//
// The nonce of a unit is its number. Both ends count alike, so a unit that is replayed, left out, moved or
// cut does not open. The two directions have different keys, so a unit that is sent back to its sender does
// not open either. No nonce is used twice under a key.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "starling/net/security/crypto.h"

struct evp_cipher_ctx_st;

namespace starling {

constexpr size_t kSealBytes = 16;
// Seal is the authentication tag of a unit.
using Seal = std::array<std::byte, kSealBytes>;

// Gcm is one end of one direction. It either seals or opens. One thread at a time may use it.
// Errors: Error (kInternal) if OpenSSL fails.
class Gcm {
 public:
  // Use says which end this is.
  enum class Use { kSeal, kOpen };

  // Uses `key`, which belongs to this direction only.
  Gcm(const Digest& key, Use use);

  // The calls for a unit are: begin(), then authenticate(), then transform(), then seal() or opens().

  // Begins a unit.
  void begin();
  // Adds bytes that are authenticated only.
  void authenticate(std::span<const std::byte> bytes);
  // Adds bytes that are authenticated, and encrypts or decrypts them to `to`, which may be where `from`
  // begins.
  void transform(std::span<const std::byte> from, std::byte* to);
  // Ends a unit and returns its seal.
  Seal seal();
  // Ends a unit. Returns false if the other end has not sealed this unit. What was decrypted is then
  // worthless.
  bool opens(const Seal& seal);

 private:
  struct Free {
    void operator()(evp_cipher_ctx_st* cipher) const;
  };
  void update(std::span<const std::byte> from, std::byte* to);

  std::unique_ptr<evp_cipher_ctx_st, Free> cipher_;
  uint64_t unit_ = 0;  // the number of the next unit
};

}  // namespace starling
