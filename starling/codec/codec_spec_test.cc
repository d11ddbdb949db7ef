// Tests the words of --codec: defaults, settings, errors, and the conversion back to a word.
#include "starling/codec/codec_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "starling/base/error.h"
#include "starling/spec/codec_table.h"
#include "starling/spec/schema.h"

namespace starling {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string error_of(const std::string& word) {
  try {
    parse_codec(word);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(CodecSpec, Defaults) {
  EXPECT_EQ(parse_codec("none"), CodecSpec{});
  for (const auto& [word, feedback] : std::vector<std::pair<std::string, bool>>{{"none", false},
                                                                                {"fp16", false},
                                                                                {"bf16", false},
                                                                                {"int8", false},
                                                                                {"1bit", true},
                                                                                {"threshold", true},
                                                                                {"lowrank", true},
                                                                                {"lowrank:form=pca", false},
                                                                                {"prune", true},
                                                                                {"dgc", true},
                                                                                {"dgc:warmup=8", true},
                                                                                {"random-k", true},
                                                                                {"qsgd", false},
                                                                                {"qsgd:levels=3", false},
                                                                                {"terngrad", false},
                                                                                {"signsgd", false}}) {
    EXPECT_EQ(parse_codec(word).error_feedback, feedback) << word;
    EXPECT_EQ(parse_codec(to_word(parse_codec(word))), parse_codec(word)) << to_word(parse_codec(word));
  }
}

// Shells complete the names that the schema suggests, so these must be all names and all stacks.
TEST(CodecSpec, TheSchemaSuggestsTheNamesAndTheStacks) {
  std::vector<std::string> expected = codec_names();
  for (const std::string& stack : split_words(codec_stacks(false, " "))) expected.push_back(stack);
  EXPECT_EQ(split_words(find_entry("exchange.codec")->suggestions), expected);
  for (const std::string& name : split_words(find_entry("exchange.pull_codec")->suggestions))
    EXPECT_NO_THROW(parse_weight_codec(name)) << name;
}

TEST(CodecSpec, Settings) {
  EXPECT_FALSE(parse_codec("1bit:feedback=off").error_feedback);
  EXPECT_EQ(parse_codec("1bit:block=512").block, 512u);
  EXPECT_TRUE(parse_codec("int8:feedback=on,block=64").error_feedback);
  EXPECT_EQ(parse_codec("threshold:tau=0.25").tau, 0.25);
  EXPECT_EQ(parse_codec("prune:keep=1e-3").keep, 1e-3);
  const CodecSpec pca = parse_codec("lowrank:form=pca,rank=4,iterations=3");
  EXPECT_EQ(pca.form, LowRankForm::kPca);
  EXPECT_EQ(pca.rank, 4);
  EXPECT_EQ(pca.iterations, 3);
  EXPECT_EQ(to_word(pca), "lowrank:form=pca,rank=4,iterations=3,feedback=off");
}

TEST(CodecSpec, StateBetweenMessages) {
  for (const char* with : {"1bit", "prune", "dgc:feedback=off", "fp16:feedback=on", "lowrank",
                           "lowrank:form=power-sgd,feedback=off", "qsgd", "random-k:feedback=off", "signsgd"})
    EXPECT_TRUE(keeps_state(parse_codec(with))) << with;
  for (const char* without : {"none", "fp16", "int8", "1bit:feedback=off", "lowrank:form=pca,feedback=off"})
    EXPECT_FALSE(keeps_state(parse_codec(without))) << without;
}

// Momentum correction is on where error feedback is, for codecs of lists.
TEST(CodecSpec, MomentumCorrectionNeedsErrorFeedback) {
  EXPECT_TRUE(parse_codec("prune").momentum_correction);
  EXPECT_TRUE(parse_codec("threshold:tau=1").momentum_correction);
  EXPECT_FALSE(parse_codec("prune:correction=off").momentum_correction);
  EXPECT_FALSE(parse_codec("prune:feedback=off").momentum_correction);
  EXPECT_FALSE(parse_codec("1bit").momentum_correction);
  EXPECT_FALSE(parse_weight_codec("prune").momentum_correction);
  EXPECT_FALSE(parse_weight_codec("prune:feedback=off").error_feedback);
  EXPECT_THROW(parse_weight_codec("prune:feedback=on"), ConfigError);
  EXPECT_EQ(parse_codec(to_word(parse_codec("prune:correction=off"))), parse_codec("prune:correction=off"));
  EXPECT_THAT(error_of("prune:feedback=off,correction=on"), HasSubstr("correction=on needs feedback=on"));
}

// The momentum of a codec without factor masking needs no error feedback.
TEST(CodecSpec, MomentumCorrectionWithoutFactorMaskingNeedsNoErrorFeedback) {
  for (const char* word : {"signsgd", "signsgd:feedback=off", "signsgd:correction=on"}) {
    EXPECT_TRUE(parse_codec(word).momentum_correction) << word;
    EXPECT_FALSE(parse_codec(word).error_feedback) << word;
    EXPECT_EQ(to_word(parse_codec(word)), "signsgd:correction=on,feedback=off") << word;
  }
  const CodecSpec off = parse_codec("signsgd:correction=off");
  EXPECT_FALSE(off.momentum_correction);
  EXPECT_EQ(parse_codec(to_word(off)), off);
  EXPECT_THAT(error_of("signsgd:feedback=on"), HasSubstr("feedback=on needs messages"));
  EXPECT_THAT(error_of("qsgd:correction=on"), HasSubstr("'correction=on' is not one of its settings"));
}

TEST(CodecSpec, Errors) {
  EXPECT_THAT(error_of("int9"), AllOf(HasSubstr("--codec: there is no codec 'int9'"),
                                      HasSubstr("did you mean 'int8'?"), HasSubstr("threshold, lowrank")));
  EXPECT_THAT(error_of(""), HasSubstr("there is no codec ''"));
  EXPECT_THAT(error_of("fp16:block=8"), HasSubstr("'block=8' is not one of its settings"));
  EXPECT_THAT(error_of("1bit:blok=8"), HasSubstr("did you mean 'block'?"));
  EXPECT_THAT(error_of("1bit:"), HasSubstr("'' is not one of its settings"));
  EXPECT_THAT(error_of("1bit:block"), HasSubstr("write KEY=VALUE"));
  EXPECT_THAT(error_of("1bit:block=8,block=16"), HasSubstr("block is given twice"));
  EXPECT_THAT(error_of("1bit:block=12"), HasSubstr("block = '12' is not a multiple of 8"));
  EXPECT_THAT(error_of("1bit:block=8.5"), HasSubstr("is not a whole number from 8 to"));
  EXPECT_THAT(error_of("1bit:feedback=maybe"), HasSubstr("is not one of off, on"));
  EXPECT_THAT(error_of("lowrank:rank=0"), HasSubstr("is not a whole number from 1 to 1024"));
  EXPECT_THAT(error_of("lowrank:form=svd"), HasSubstr("is not one of power-sgd, pca"));
  for (const char* word : {"threshold:tau=0", "threshold:tau=-1", "threshold:tau=nan", "threshold:tau=1x",
                           "threshold:tau=", "prune:keep=0", "prune:keep=1.5", "prune:keep=inf"})
    EXPECT_THAT(error_of(word), HasSubstr("is not a")) << word;
}

TEST(CodecSpec, WeightsTravelWholeAndWithoutFeedback) {
  EXPECT_EQ(parse_weight_codec("lowrank:rank=4").form, LowRankForm::kPca);
  EXPECT_FALSE(parse_weight_codec("prune:keep=0.5").error_feedback);
  for (const char* word : {"threshold", "lowrank:form=power-sgd", "zip", "1bit:feedback=on"})
    EXPECT_THROW(parse_weight_codec(word), ConfigError) << word;
}

}  // namespace
}  // namespace starling
