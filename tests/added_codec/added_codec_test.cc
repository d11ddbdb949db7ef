// Shows that a new codec needs one file (fixed16.cc) and one row (row.inc). The configuration, its
// validation, the parser of words and the exchanges then know the codec. This program compiles the three
// files that read the table again, with the added row.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "starling/base/error.h"
#include "starling/codec/codec_reference.h"
#include "starling/codec/compressed_all_reduce.h"
#include "starling/codec/make_codec.h"
#include "starling/spec/codec_table.h"
#include "starling/spec/config.h"
#include "starling/spec/validate.h"
#include "starling/testing/memory_ranks.h"

namespace starling {
namespace {

constexpr size_t kCount = 3000;
constexpr int kRanks = 3;

// The mean of the gradients of all ranks, computed plainly.
Values mean_gradient() {
  Values mean(kCount, 0.0f);
  for (int rank = 0; rank < kRanks; ++rank) {
    const Values g = test_values(kCount, static_cast<unsigned>(rank));
    for (size_t i = 0; i < kCount; ++i) mean[i] += g[i] / kRanks;
  }
  return mean;
}

TEST(AddedCodec, TheConfigurationAndTheListKnowIt) {
  Config config;
  apply_set(config, "exchange.codec=fixed16");
  apply_set(config, "train.ranks=2");
  EXPECT_NO_THROW(validate(config.spec, config.origins));
  EXPECT_THAT(std::string(codec_words(false)), testing::EndsWith(" fixed16"));
  EXPECT_THAT(codec_names(), testing::Contains("fixed16"));
  ASSERT_NE(find_codec("fixed16"), nullptr);
  EXPECT_TRUE(find_codec("fixed16")->error_feedback);
}

TEST(AddedCodec, ItsWordIsParsedAndPrinted) {
  const CodecSpec spec = parse_codec("fixed16");
  EXPECT_TRUE(spec.error_feedback);
  EXPECT_FALSE(parse_codec("fixed16:feedback=off").error_feedback);
  EXPECT_EQ(name_of(spec), "fixed16");
  EXPECT_EQ(parse_codec(to_word(spec)), spec);
  EXPECT_THROW(parse_codec("fixed16:block=8"), ConfigError);
  const CodecSpec coarse = parse_codec("fixed16:limit=100");
  EXPECT_EQ(coarse.settings.at("limit"), "100");
  EXPECT_TRUE(coarse.error_feedback);
  EXPECT_EQ(parse_codec(to_word(coarse)), coarse);
  for (const char* limit : {"0", "40000", "abc", "5x", ""})
    EXPECT_THROW(make_codec(std::string("fixed16:limit=") + limit), ConfigError) << limit;
}

TEST(AddedCodec, TheMakerBuildsIt) {
  const Values x = test_values(kCount, 1);
  const float largest = std::abs(
      *std::max_element(x.begin(), x.end(), [](float a, float b) { return std::abs(a) < std::abs(b); }));
  for (const auto& [word, limit] : {std::pair("fixed16", 32767), std::pair("fixed16:limit=100", 100)}) {
    const auto codec = make_codec(word);
    EXPECT_EQ(codec->name(), "fixed16");
    const std::vector<std::byte> message = message_of(*codec, x);
    EXPECT_EQ(message.size(), 4 + 2 * kCount);
    // A value moves by at most half a unit, and some value by more than a quarter.
    const float unit = largest / static_cast<float>(limit);
    const Values back = decoded(*codec, message, kCount);
    float most = 0;
    for (size_t i = 0; i < kCount; ++i) most = std::max(most, std::abs(back[i] - x[i]));
    EXPECT_LE(most, 0.505f * unit);
    EXPECT_GT(most, 0.25f * unit);
  }
}

TEST(AddedCodec, AnAllReduceUsesItAndKeepsItsResidual) {
  const Values mean = mean_gradient();
  run_on_memory(kRanks, false, [&](Group& group) {
    CompressedAllReduce reduce(group, parse_codec("fixed16"), {}, kCount);
    const Values own = test_values(kCount, static_cast<unsigned>(group.rank()));
    Values sum(kCount, 0.0f);
    constexpr int kSteps = 50;
    for (int step = 0; step < kSteps; ++step) {
      Values data = own;
      reduce.apply(data);
      if (step == 0) {
        EXPECT_GT(norm(minus(data, mean)), 0);
        EXPECT_LT(norm(minus(data, mean)), 1e-3 * norm(mean));
      }
      for (size_t i = 0; i < kCount; ++i) sum[i] += data[i] / kSteps;
    }
    // Error feedback delays what a message drops, so that the mean over the steps is more accurate.
    EXPECT_LT(norm(minus(sum, mean)), 1e-5 * norm(mean));
    // Per step, p - 1 parts go to their owners. Then p - 1 copies of the own part, filled up to the length of
    // the longest one, go back. Parts meet at multiples of 16 values.
    const size_t first = part_begin(kCount, kRanks, group.rank());
    const size_t part = part_begin(kCount, kRanks, group.rank() + 1) - first;
    const size_t longest = 1008;
    const size_t bytes = (kRanks - 1) * 4 + 2 * (kCount - part) + (kRanks - 1) * (4 + 2 * longest);
    EXPECT_EQ(reduce.sent(), kSteps * bytes);
  });
}

}  // namespace
}  // namespace starling
