// Compares the 8-bit quantization with a given range with its definition.
#include "starling/codec/symmetric_int8.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "starling/codec/codec_reference.h"

namespace starling {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

Values sent(const Values& x, float range, size_t* beyond = nullptr) {
  std::vector<std::byte> codes(x.size());
  const size_t count = encode_symmetric_int8(x, range, codes);
  if (beyond != nullptr) *beyond = count;
  Values out(x.size(), -77.0f);
  decode_symmetric_int8(codes, range, out);
  return out;
}

TEST(SymmetricInt8, EqualsTheDefinition) {
  for (const size_t count : {1, 15, 16, 17, 3000}) {
    const Values x = test_values(count, 3);
    for (const float range : {magnitude_percentile(x, 100), 0.02f}) {
      Values want;
      size_t beyond = 0;
      for (const float v : x) {
        const float scaled = std::clamp(v * (127.0f / range), -127.0f, 127.0f);
        want.push_back(range / 127.0f * static_cast<float>(std::lrint(scaled)));
        beyond += std::fabs(v) > range ? 1 : 0;
      }
      size_t counted = 77;
      EXPECT_EQ(sent(x, range, &counted), want) << count << ' ' << range;
      EXPECT_EQ(counted, beyond) << count << ' ' << range;
    }
  }
}

TEST(SymmetricInt8, StaysWithinHalfAStepInsideTheRange) {
  const Values x = test_values(10000, 4);
  const float range = magnitude_percentile(x, 100);
  const Values out = sent(x, range);
  for (size_t i = 0; i < x.size(); ++i) EXPECT_LE(std::fabs(out[i] - x[i]), range / 254 * 1.0001f);
}

TEST(SymmetricInt8, ValuesBeyondTheRangeSaturateAndAreCounted) {
  size_t beyond = 0;
  const Values out = sent({2.0f, -2.0f, 2.001f, -3.0f, 3e38f, 0.0f}, 2.0f, &beyond);
  const float end = 2.0f / 127.0f * 127.0f;
  EXPECT_EQ(out, (Values{end, -end, end, -end, end, 0.0f}));
  EXPECT_EQ(beyond, 3u);
}

TEST(SymmetricInt8, NaNAndInfinityArriveAsNaN) {
  size_t beyond = 0;
  const Values out = sent({kNan, kInfinity, -kInfinity, 1.0f}, 1.0f, &beyond);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(std::isnan(out[i])) << i;
  EXPECT_EQ(out[3], 1.0f / 127.0f * 127.0f);
  EXPECT_EQ(beyond, 0u);
}

TEST(SymmetricInt8, TheSmallestRangeWorks) {
  const Values out = sent({kSmallestRange, -kSmallestRange / 2, 0.0f}, kSmallestRange);
  EXPECT_EQ(out[0], kSmallestRange / 127.0f * 127.0f);
  EXPECT_NEAR(out[1] / kSmallestRange, -0.5, 0.5 / 127 * 1.001);
  EXPECT_EQ(out[2], 0.0f);
}

TEST(SymmetricInt8, APercentileIsThatOfTheNearestRank) {
  Values x;
  for (int i = 1; i <= 1000; ++i) x.push_back(static_cast<float>(i % 2 == 0 ? i : -i));
  EXPECT_EQ(magnitude_percentile(x, 100), 1000.0f);
  EXPECT_EQ(magnitude_percentile(x, 99.9), 999.0f);
  EXPECT_EQ(magnitude_percentile(x, 99.95), 1000.0f);
  EXPECT_EQ(magnitude_percentile(x, 50), 500.0f);
  EXPECT_EQ(magnitude_percentile(x, 0.01), 1.0f);
  EXPECT_EQ(magnitude_percentile(Values{-3.0f}, 50), 3.0f);
}

TEST(SymmetricInt8, OnlyFiniteValuesHaveARange) {
  for (const double percentile : {100.0, 50.0}) {
    EXPECT_EQ(magnitude_percentile(Values{kNan, kInfinity, -4.0f, -kInfinity}, percentile), 4.0f);
    EXPECT_EQ(magnitude_percentile(Values{kNan, kInfinity}, percentile), 0.0f);
    EXPECT_EQ(magnitude_percentile({}, percentile), 0.0f);
  }
}

}  // namespace
}  // namespace starling
