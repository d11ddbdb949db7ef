// The few cryptographic functions that this layer uses, from OpenSSL. Errors: Error (kInternal) if OpenSSL
// fails.
#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <span>
#include <string_view>

namespace starling {

// Digest is the output of SHA-256, or a key of that size.
using Digest = std::array<std::byte, 32>;
// Returns the HMAC-SHA256 (RFC 2104) of the joined parts.
Digest hmac_sha256(std::span<const std::byte> key, std::initializer_list<std::span<const std::byte>> parts);
// Returns 32 bytes of HKDF-SHA256 (RFC 5869).
Digest hkdf_sha256(std::span<const std::byte> key, std::span<const std::byte> salt, std::string_view info);
// Fills `out` with bytes of OpenSSL's random generator, which the system's generator seeds.
void fill_random(std::span<std::byte> out);
// Overwrites a secret with zeros. The compiler does not remove these stores.
void wipe(std::span<std::byte> secret);

}  // namespace starling
