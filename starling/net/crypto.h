// The few cryptographic functions that this layer uses, from OpenSSL. They throw Error(kInternal) if OpenSSL fails.
#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <span>
#include <string_view>

namespace starling {

using Digest = std::array<std::byte, 32>;

// HMAC-SHA256 (RFC 2104) of the parts, joined.
Digest hmac_sha256(std::span<const std::byte> key, std::initializer_list<std::span<const std::byte>> parts);
// HKDF-SHA256 (RFC 5869), 32 bytes of output.
Digest hkdf_sha256(std::span<const std::byte> key, std::span<const std::byte> salt, std::string_view info);
// In time that depends on the sizes only. Different sizes are unequal.
bool equal_in_constant_time(std::span<const std::byte> a, std::span<const std::byte> b);
// From the system's generator.
void fill_random(std::span<std::byte> out);
// Overwrites with zeros, never optimised away.
void wipe(std::span<std::byte> secret);

}  // namespace starling
