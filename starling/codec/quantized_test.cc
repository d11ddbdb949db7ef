// Compares none, fp16, bf16, int8 and 1bit with their naive references, their formulas and their error
// bounds.
#include <gtest/gtest.h>

#include <limits>

#include "starling/codec/block_cut.h"
#include "starling/codec/codec_reference.h"
#include "starling/codec/fp16.h"
#include "starling/codec/make_codec.h"

namespace starling {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Returns the bit patterns of interest: both neighbors of powers of two, ties, subnormal numbers, and the
// ends of the range.
Values edge_values() {
  Values x{0.0f, -0.0f, kInfinity, -kInfinity, 65504.0f, 65519.9f, 65520.0f, 1e-45f, 3.4e38f};
  for (int e = -149; e < 128; ++e) {
    for (const float m :
         {1.0f, 1.0009765f, 1.00048828125f, 1.00146484375f, 1.5f, 1.00390625f, 1.01171875f, 1.9999999f}) {
      x.push_back(std::ldexp(m, e));
      x.push_back(-std::ldexp(m, e));
    }
  }
  return x;
}

TEST(SixteenBitCodecs, RoundAsTheScalarConversions) {
  for (const Values& x : {edge_values(), test_values(10001, 1)}) {
    EXPECT_EQ(round_trip(*make_codec("fp16"), x), fp16_reference(x));
    EXPECT_EQ(round_trip(*make_codec("bf16"), x), bf16_reference(x));
    EXPECT_EQ(round_trip(*make_codec("none"), x), x);
  }
  EXPECT_TRUE(std::isnan(round_trip(*make_codec("fp16"), Values{kNan})[0]));
  EXPECT_TRUE(std::isnan(round_trip(*make_codec("bf16"), Values{kNan})[0]));
}

TEST(SixteenBitCodecs, EveryHalfSurvives) {
  for (uint32_t h = 0; h < 0x10000; ++h) {
    const float value = fp32_of_fp16(static_cast<uint16_t>(h));
    const float expected = fp16_to_float(static_cast<uint16_t>(h));
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(value)) << h;
      continue;
    }
    ASSERT_EQ(value, expected) << h;
    ASSERT_EQ(fp16_of_fp32(value), h) << h;
  }
}

TEST(SixteenBitCodecs, StayWithinTheirBounds) {
  const Values x = test_values(5000, 2);
  const Values half = round_trip(*make_codec("fp16"), x), brain = round_trip(*make_codec("bf16"), x);
  for (size_t i = 0; i < x.size(); ++i) {
    EXPECT_LE(std::fabs(half[i] - x[i]), std::max(std::fabs(x[i]) / 2048, std::ldexp(1.0f, -25)));
    EXPECT_LE(std::fabs(brain[i] - x[i]), std::fabs(x[i]) / 256);
  }
}

const std::vector<TensorShape> kShapes{{30, 25, 18}, {1, 30, 34}, {7, 100, 0}, {1, 1, 63}, {0, 5, 4}};

TEST(Int8, EqualsTheReference) {
  for (const size_t count : {1, 255, 256, 257, 3000}) {
    const Values x = test_values(count, 3);
    EXPECT_EQ(round_trip(*make_codec("int8"), x), int8_reference(x, 256, {})) << count;
    EXPECT_EQ(round_trip(*make_codec("int8:block=64"), x), int8_reference(x, 64, {})) << count;
    EXPECT_EQ(make_codec("int8")->encoded_bytes(count), count + 4 * ((count + 255) / 256));
  }
  const auto codec = make_codec("int8", kShapes);
  const Values x = test_values(total_size(kShapes), 4);
  EXPECT_EQ(round_trip(*codec, x), int8_reference(x, 256, kShapes));
  EXPECT_EQ(codec->encoded_bytes(x.size()), 750u + 3 * 4 + 30 + 4 + 700 + 3 * 4 + 1 + 4);
}

TEST(Int8, StaysWithinHalfAStep) {
  const Values x = test_values(256 * 40, 5);
  const Values out = round_trip(*make_codec("int8"), x);
  for (size_t begin = 0; begin < x.size(); begin += 256) {
    float max = 0;
    for (size_t i = begin; i < begin + 256; ++i) max = std::max(max, std::fabs(x[i]));
    for (size_t i = begin; i < begin + 256; ++i) ASSERT_LE(std::fabs(out[i] - x[i]), max / 254 * 1.00001f);
  }
}

TEST(Int8, ABlockThatIsNotFiniteIsNanAndOthersAreNot) {
  Values x = test_values(1024, 6);
  x[300] = kInfinity;
  x[800] = kNan;
  const Values out = round_trip(*make_codec("int8"), x);
  for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(std::isnan(out[i]), i / 256 == 1 || i / 256 == 3) << i;
}

TEST(Int8, ExtremeScales) {
  EXPECT_EQ(round_trip(*make_codec("int8"), Values{1e-40f, -1e-42f}), Values(2, 0.0f));
  const Values large{3e38f, -3e38f, 1e38f};
  EXPECT_EQ(round_trip(*make_codec("int8"), large), int8_reference(large, 256, {}));
  const Values small{2e-36f, 1e-36f};
  EXPECT_EQ(round_trip(*make_codec("int8"), small), int8_reference(small, 256, {}));
}

void expect_one_bit(Codec& codec, const Values& x, size_t block, const std::vector<TensorShape>& shapes) {
  const Values out = round_trip(codec, x), expected = one_bit_reference(x, block, shapes);
  for (size_t i = 0; i < x.size(); ++i)
    ASSERT_NEAR(out[i], expected[i], 1e-6f * std::fabs(expected[i])) << i << " of " << x.size();
}

TEST(OneBit, EqualsTheReference) {
  for (const size_t count : {1, 7, 9, 255, 256, 257, 300, 3000}) {
    const Values x = test_values(count, 7);
    expect_one_bit(*make_codec("1bit"), x, 256, {});
    expect_one_bit(*make_codec("1bit:block=40"), x, 40, {});
  }
  const auto codec = make_codec("1bit", kShapes);
  expect_one_bit(*codec, test_values(total_size(kShapes), 8), 256, kShapes);
  const size_t signs = 94 + 4 + 88 + 1, blocks = 3 + 1 + 3 + 1;
  EXPECT_EQ(codec->encoded_bytes(total_size(kShapes)), signs + 8 * blocks);
}

TEST(OneBit, IsAnEighthOfAByteAndTwoMeansABlock) {
  const auto codec = make_codec("1bit");
  EXPECT_EQ(codec->encoded_bytes(1 << 20), (1u << 20) / 8 + 8u * 4096);
  EXPECT_EQ(codec->encoded_bytes(257), 32u + 8 + 1 + 8);
}

TEST(OneBit, KeepsTheSumOfEachBlock) {
  const Values x = test_values(2560, 9);
  const Values out = round_trip(*make_codec("1bit"), x);
  for (size_t begin = 0; begin < x.size(); begin += 256) {
    const auto at = static_cast<std::ptrdiff_t>(begin);
    EXPECT_NEAR(std::accumulate(x.begin() + at, x.begin() + at + 256, 0.0),
                std::accumulate(out.begin() + at, out.begin() + at + 256, 0.0), 1e-4);
  }
}

TEST(OneBit, OneSign) {
  const Values positive(20, 3.0f), negative(20, -3.0f);
  EXPECT_EQ(round_trip(*make_codec("1bit"), positive), positive);
  EXPECT_EQ(round_trip(*make_codec("1bit"), negative), negative);
}

}  // namespace
}  // namespace starling
