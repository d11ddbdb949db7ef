#include "starling/net/security/crypto.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace starling {
namespace {

std::vector<std::byte> filled(size_t size, int value) {
  return std::vector<std::byte>(size, std::byte(value));
}

std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  for (std::byte b : bytes) text += fmt::format("{:02x}", static_cast<int>(b));
  return text;
}

TEST(Crypto, HmacFollowsRfc4231) {
  const std::string data = "Hi There";
  const auto part = [&](size_t from, size_t count) {
    return std::as_bytes(std::span(data)).subspan(from, count);
  };
  EXPECT_EQ(hex(hmac_sha256(filled(20, 0x0b), {part(0, 3), {}, part(3, 5)})),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
}

TEST(Crypto, HkdfFollowsRfc5869) {
  std::vector<std::byte> salt;
  for (int i = 0; i < 13; ++i) salt.push_back(std::byte(i));
  const std::string info = "\xf0\xf1\xf2\xf3\xf4\xf5\xf6\xf7\xf8\xf9";
  EXPECT_EQ(hex(hkdf_sha256(filled(22, 0x0b), salt, info)),
            "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf");
}

TEST(Crypto, Wipes) {
  auto a = filled(32, 1);
  wipe(a);
  EXPECT_EQ(a, filled(32, 0));
}

}  // namespace
}  // namespace starling
