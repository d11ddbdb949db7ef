// Tests error feedback: the decoded sum is the sum of the inputs minus one residual.
#include "starling/codec/error_feedback.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "starling/base/error.h"
#include "starling/codec/codec_reference.h"
#include "starling/codec/make_codec.h"

namespace starling {
namespace {

constexpr size_t kCount = 2000;
const std::vector<TensorShape> kShapes{{40, 40, 24}, {1, 300, 76}};

struct Sums {
  Values in = Values(kCount, 0.0f), out = Values(kCount, 0.0f);
};

// Feeds `steps` gradients that have a common direction, like those of a training run.
Sums feed(Codec& codec, ErrorFeedback* feedback, int first, int steps) {
  const Values direction = test_values(kCount, 1000);
  std::vector<std::byte> message(codec.encoded_bytes(kCount));
  Sums sums;
  for (int step = first; step < first + steps; ++step) {
    Values g = test_values(kCount, static_cast<unsigned>(step));
    for (size_t i = 0; i < kCount; ++i) {
      const bool padding = (i >= 1600 && i < 1624) || i >= 1924;
      g[i] = padding ? 0.0f : 0.3f * g[i] + direction[i];
      sums.in[i] += g[i];
    }
    const size_t bytes = feedback != nullptr ? feedback->encode(codec, g, message) : codec.encode(g, message);
    codec.decode_add(std::span(message).first(bytes), sums.out);
  }
  return sums;
}

class FeedbackOf : public testing::TestWithParam<const char*> {};

TEST_P(FeedbackOf, TheDecodedSumIsTheSumLessTheResidual) {
  const auto codec = make_codec(GetParam(), kShapes);
  ErrorFeedback feedback(kCount);
  const Sums sums = feed(*codec, &feedback, 0, 30);
  const Values residual(feedback.residual().begin(), feedback.residual().end());
  const Values missing = minus(sums.in, sums.out);
  EXPECT_LT(norm(minus(missing, residual)), 1e-4 * norm(sums.in));
}

// The residual stays bounded, so its share of the sum decreases with the number of steps.
TEST_P(FeedbackOf, TheRelativeErrorOfTheSumFallsWithTheSteps) {
  const auto error_after = [](int steps) {
    const auto codec = make_codec(GetParam(), kShapes);
    ErrorFeedback feedback(kCount);
    const Sums sums = feed(*codec, &feedback, 0, steps);
    return norm(minus(sums.in, sums.out)) / norm(sums.in);
  };
  EXPECT_LT(error_after(160), 0.5 * error_after(20));
}

INSTANTIATE_TEST_SUITE_P(Words, FeedbackOf,
                         testing::Values("bf16", "int8", "1bit", "threshold:tau=0.4", "prune:keep=0.1",
                                         "lowrank", "lowrank:form=pca,feedback=on", "dgc:keep=0.1",
                                         "prune+int8:keep=0.1", "prune+bf16:keep=0.1", "lowrank+fp16"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
                           return name;
                         });

TEST(ErrorFeedback, WithoutItOneBitKeepsItsBias) {
  const auto relative = [](bool with, int steps) {
    const auto codec = make_codec("1bit", kShapes);
    ErrorFeedback feedback(kCount);
    const Sums sums = feed(*codec, with ? &feedback : nullptr, 0, steps);
    return norm(minus(sums.in, sums.out)) / norm(sums.in);
  };
  EXPECT_GT(relative(false, 160), 0.3);
  EXPECT_LT(relative(true, 160), 0.1);
}

TEST(ErrorFeedback, ContinuesFromItsState) {
  const auto codec = make_codec("1bit", kShapes);
  ErrorFeedback whole(kCount), first(kCount), second(kCount);
  feed(*codec, &whole, 0, 7);
  feed(*codec, &first, 0, 4);
  second.load_state(first.state());
  feed(*codec, &second, 4, 3);
  EXPECT_EQ(second.state(), whole.state());
}

TEST(ErrorFeedback, RefusesAnotherState) {
  ErrorFeedback feedback(10);
  EXPECT_THROW(feedback.load_state({}), Error);
  try {
    feedback.load_state({{"residual", Values(9)}});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCheckpoint);
    EXPECT_THAT(error.what(), testing::HasSubstr("9 values for a residual of 10 values"));
  }
}

TEST(ErrorFeedback, ANanIsSentOnceAndDoesNotStay) {
  const auto codec = make_codec("int8");
  ErrorFeedback feedback(kCount);
  std::vector<std::byte> message(codec->encoded_bytes(kCount));
  Values g = test_values(kCount, 1);
  g[5] = std::numeric_limits<float>::quiet_NaN();
  feedback.encode(*codec, g, message);
  EXPECT_TRUE(std::isnan(decoded(*codec, message, kCount)[5]));
  for (const float r : feedback.residual()) ASSERT_TRUE(std::isfinite(r));
}

}  // namespace
}  // namespace starling
