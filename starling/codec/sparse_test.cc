// Compares threshold and prune with their naive references and their formulas, and decodes hostile messages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "starling/base/error.h"
#include "starling/codec/codec_reference.h"
#include "starling/codec/make_codec.h"
#include "starling/codec/message_bytes.h"
#include "starling/codec/prune.h"

namespace starling {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(Threshold, EqualsTheReferenceAndItsFormula) {
  for (const size_t count : {1, 63, 64, 65, 1000, 70001}) {
    const Values x = test_values(count, 1);
    for (const float tau : {1e-6f, 0.01f, 0.1f, 0.3f, 10.0f}) {
      const auto codec = make_codec("threshold:tau=" + std::to_string(tau));
      const Values expected = threshold_reference(x, tau);
      const auto message = message_of(*codec, x);
      ASSERT_EQ(decoded(*codec, message, count), expected) << count << " " << tau;
      EXPECT_EQ(message.size(), 8 + gap_bytes_reference(expected, 2)) << count << " " << tau;
    }
  }
}

TEST(Threshold, ReachesItsBoundWhereEverythingTravels) {
  const auto codec = make_codec("threshold:tau=0.5");
  const Values x(5000, -1.0f);
  EXPECT_EQ(message_of(*codec, x).size(), 5008u);
  EXPECT_EQ(codec->encoded_bytes(5000), 5008u);
  EXPECT_EQ(round_trip(*codec, x), Values(5000, -0.5f));
}

TEST(Threshold, WhatIsNotFiniteMakesEverythingNan) {
  const auto codec = make_codec("threshold:tau=0.05");
  for (const float bad : {kNan, kInfinity}) {
    Values x = test_values(500, 2);
    x[499] = bad;
    EXPECT_EQ(message_of(*codec, x).size(), 8u);
    for (const float v : round_trip(*codec, x)) EXPECT_TRUE(std::isnan(v));
  }
}

std::vector<std::byte> threshold_message(uint32_t count, float tau, std::initializer_list<int> bytes) {
  std::vector<std::byte> message(8);
  store_value(message.data(), count);
  store_value(message.data() + 4, tau);
  for (const int byte : bytes) message.push_back(static_cast<std::byte>(byte));
  return message;
}

template <typename Message>
std::string error_of(const Codec& codec, const Message& message, size_t count) {
  Values out(count);
  try {
    codec.decode(message, out);
  } catch (const CommError& error) {
    return error.what();
  }
  return "";
}

TEST(Threshold, HostileMessages) {
  const auto codec = make_codec("threshold");
  const auto refusal = [&](uint32_t count, float tau, std::initializer_list<int> bytes) {
    return error_of(*codec, threshold_message(count, tau, bytes), 10);
  };
  EXPECT_EQ(refusal(2, 1.0f, {0, 16}), "");  // elements 0 and 9
  EXPECT_THAT(refusal(2, 1.0f, {0, 18}), testing::HasSubstr("index out of range"));
  EXPECT_THAT(refusal(11, 1.0f, {0}), testing::HasSubstr("more elements than there are"));
  EXPECT_THAT(refusal(2, 1.0f, {0}), testing::HasSubstr("ends inside an index"));
  EXPECT_THAT(refusal(1, 1.0f, {0, 0}), testing::HasSubstr("has bytes after"));
  EXPECT_THAT(refusal(1, 1.0f, {255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1}),
              testing::HasSubstr("ends inside an index"));
  EXPECT_THAT(refusal(1, 1.0f, {255, 255, 255, 255, 255, 255, 255, 255, 127}),
              testing::HasSubstr("index out of range"));
  for (const float tau : {0.0f, -1.0f, kInfinity})
    EXPECT_THAT(refusal(0, tau, {}), testing::HasSubstr("no positive threshold"));
  EXPECT_THAT(refusal(1, kNan, {0}), testing::HasSubstr("no positive threshold"));
}

TEST(Prune, EqualsTheReferenceAndItsFormula) {
  for (const size_t count : {1, 10, 1000, 70001}) {
    const Values x = test_values(count, 3);
    for (const double keep : {1e-9, 0.0005, 0.01, 0.3, 1.0}) {
      PruneCodec codec(keep);
      const Values expected = prune_reference(x, codec.kept(count));
      const auto message = message_of(codec, x);
      ASSERT_EQ(decoded(codec, message, count), expected) << count << " " << keep;
      EXPECT_EQ(message.size(), 4 * codec.kept(count) + gap_bytes_reference(expected, 1));
      EXPECT_LE(message.size(), codec.encoded_bytes(count));
    }
  }
}

TEST(Prune, TheFirstOfEqualMagnitudes) {
  const Values x{1, -2, 2, -2, 1, 2, 3};
  EXPECT_EQ(round_trip(*make_codec("prune:keep=0.42"), x), (Values{0, -2, 2, 0, 0, 0, 3}));
  EXPECT_EQ(round_trip(*make_codec("prune:keep=0.5"), Values(4, 0.0f)), Values(4, 0.0f));
}

TEST(Prune, NanThenInfinityThenNumbers) {
  const Values x{1, 3e38f, kNan, -kInfinity, 5};
  const Values out = round_trip(*make_codec("prune:keep=0.4"), x);
  EXPECT_TRUE(std::isnan(out[2]));
  EXPECT_EQ(out[3], -kInfinity);
  EXPECT_EQ(out[0] + out[1] + out[4], 0);
}

TEST(Prune, ItsBoundIsReachedAndNotPassed) {
  // Gaps of 130 elements as often as they fit; the remaining gaps are 1.
  Values x(13000, 0.0f);
  for (size_t i = 0; i < 90; ++i) x[130 * i + 129] = 1;
  for (size_t i = 12000; i < 12040; ++i) x[i] = 2;
  PruneCodec codec(0.01);
  EXPECT_EQ(codec.kept(13000), 130u);
  EXPECT_EQ(codec.encoded_bytes(13000), 4u * 130 + 130 + 100);
  EXPECT_LE(message_of(codec, x).size(), codec.encoded_bytes(13000));
  EXPECT_EQ(PruneCodec(1).encoded_bytes(1000), 5000u);
}

TEST(Prune, HostileMessages) {
  PruneCodec codec(0.2);  // 2 of 10
  std::vector<std::byte> message(8);
  const auto refusal = [&](std::initializer_list<int> bytes) {
    auto bad = message;
    for (const int byte : bytes) bad.push_back(static_cast<std::byte>(byte));
    return error_of(codec, bad, 10);
  };
  EXPECT_EQ(refusal({0, 8}), "");
  EXPECT_THAT(refusal({0, 9}), testing::HasSubstr("index out of range"));
  EXPECT_THAT(refusal({9, 0}), testing::HasSubstr("index out of range"));
  EXPECT_THAT(refusal({0}), testing::HasSubstr("ends before its last value"));
  EXPECT_THAT(refusal({0, 128}), testing::HasSubstr("ends inside an index"));
  EXPECT_THAT(refusal({0, 0, 0}), testing::HasSubstr("has bytes after"));
}

TEST(KthMagnitude, EqualsSorting) {
  Values x = test_values(3000, 4);
  for (size_t i = 0; i < 300; ++i) x[i * 7] = 0.05f;
  Values sorted = x;
  std::sort(sorted.begin(), sorted.end(), [](float a, float b) { return std::fabs(a) > std::fabs(b); });
  for (const size_t k : {1, 2, 100, 1500, 2999, 3000}) {
    const KthMagnitude found = kth_magnitude(x, k);
    const float expected = std::fabs(sorted[k - 1]);
    EXPECT_EQ(__builtin_bit_cast(float, found.bits), expected) << k;
    EXPECT_EQ(found.above, static_cast<size_t>(std::count_if(
                               x.begin(), x.end(), [&](float v) { return std::fabs(v) > expected; })));
  }
}

}  // namespace
}  // namespace starling
