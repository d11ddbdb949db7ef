#include "starling/net/security/gcm.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "starling/base/error.h"

namespace starling {
namespace {

Digest key(int value) {
  Digest digest;
  digest.fill(std::byte(value));
  return digest;
}

std::vector<std::byte> bytes_of_hex(const std::string& hex) {
  std::vector<std::byte> bytes;
  for (size_t i = 0; i < hex.size(); i += 2)
    bytes.push_back(static_cast<std::byte>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return bytes;
}

// Test cases 13 and 14 of the GCM specification (McGrew and Viega). Key and nonce are zeros, as in the first
// unit.
TEST(Gcm, GivesThePublishedValues) {
  Gcm empty(key(0), Gcm::Use::kSeal);
  empty.begin();
  const Seal seal = empty.seal();
  EXPECT_EQ(std::vector(seal.begin(), seal.end()), bytes_of_hex("530f8afbc74536b9a963b4f1c4cb738b"));

  Gcm block(key(0), Gcm::Use::kSeal);
  std::vector<std::byte> text(16);
  block.begin();
  block.transform(text, text.data());
  const Seal second = block.seal();
  EXPECT_EQ(text, bytes_of_hex("cea7403d4d606b6e074ec5d3baf39d18"));
  EXPECT_EQ(std::vector(second.begin(), second.end()), bytes_of_hex("d0d1c8a799996bf0265b98b5d48ab919"));
}

TEST(Gcm, PiecesDoNotMatterAndUnitsHaveNoncesOfTheirOwn) {
  const std::vector<std::byte> plain(1000, std::byte{'x'});
  Gcm sealing(key(1), Gcm::Use::kSeal), opening(key(1), Gcm::Use::kOpen);
  std::vector<std::vector<std::byte>> seen;
  for (int unit = 0; unit < 3; ++unit) {
    std::vector<std::byte> sealed(plain.size());
    sealing.begin();
    sealing.transform(plain, sealed.data());
    const Seal seal = sealing.seal();
    for (const auto& earlier : seen) EXPECT_NE(sealed, earlier);
    seen.push_back(sealed);
    opening.begin();
    opening.transform(std::span(sealed).first(7), sealed.data());
    opening.transform(std::span(sealed).subspan(7), sealed.data() + 7);
    EXPECT_TRUE(opening.opens(seal));
    EXPECT_EQ(sealed, plain);
  }
}

TEST(Gcm, OpensOnlyWhatWasSealedAtThatPlaceUnderThatKey) {
  const std::vector<std::byte> text(40, std::byte{'y'});
  const auto sealed_as = [&](int unit, int key_value) {
    Gcm sealing(key(key_value), Gcm::Use::kSeal);
    for (int i = 0; i < unit; ++i) sealing.begin();
    sealing.begin();
    sealing.authenticate(text);
    return sealing.seal();
  };
  const auto opens = [&](const Seal& seal, std::span<const std::byte> what) {
    Gcm opening(key(1), Gcm::Use::kOpen);
    opening.begin();
    opening.authenticate(what);
    return opening.opens(seal);
  };
  EXPECT_TRUE(opens(sealed_as(0, 1), text));
  EXPECT_FALSE(opens(sealed_as(1, 1), text));
  EXPECT_FALSE(opens(sealed_as(0, 2), text));
  EXPECT_FALSE(opens(sealed_as(0, 1), std::span(text).first(39)));
  std::vector<std::byte> changed = text;
  changed[39] ^= std::byte{1};
  EXPECT_FALSE(opens(sealed_as(0, 1), changed));
  Seal seal = sealed_as(0, 1);
  seal[15] ^= std::byte{0x80};
  EXPECT_FALSE(opens(seal, text));
}

}  // namespace
}  // namespace starling
