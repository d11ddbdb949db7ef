// AES-256-GCM (NIST SP 800-38D) by OpenSSL, for one direction of a connection. The nonce of a unit is its number: both ends
// count alike, so a unit that is replayed, left out, moved, cut, or sent back to who made it (the two directions have keys of
// their own) does not open, and no nonce comes twice under a key.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "starling/net/crypto.h"

struct evp_cipher_ctx_st;

namespace starling {

constexpr size_t kSealBytes = 16;
using Seal = std::array<std::byte, kSealBytes>;

// One end of one direction: it seals, or it opens. One thread. Throws Error(kInternal) if OpenSSL fails.
class Gcm {
 public:
  enum class Use { kSeal, kOpen };

  Gcm(const Digest& key, Use use);

  // A unit is: begin(), then what is authenticated only, then what is also encrypted or decrypted (`to` may be where `from`
  // begins), then seal() or opens().
  void begin();
  void authenticate(std::span<const std::byte> bytes);
  void transform(std::span<const std::byte> from, std::byte* to);
  Seal seal();
  // False: this is not the unit that the other end sealed; what was decrypted is worthless.
  bool opens(const Seal& seal);

 private:
  struct Free {
    void operator()(evp_cipher_ctx_st* cipher) const;
  };
  void update(std::span<const std::byte> from, std::byte* to);

  std::unique_ptr<evp_cipher_ctx_st, Free> cipher_;
  uint64_t unit_ = 0;  // the next one's number
};

}  // namespace starling
