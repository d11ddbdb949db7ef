// Tests what every codec guarantees: its number of bytes, empty ranges, decode_add, hostile bytes, and values
// that are not finite.
#include "starling/codec/codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <string>

#include "starling/base/error.h"
#include "starling/codec/codec_reference.h"
#include "starling/codec/make_codec.h"
#include "starling/spec/codec_table.h"

namespace starling {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

class EveryCodec : public testing::TestWithParam<std::string> {
 protected:
  // Makes a codec for ranges of `count` values. If it needs shapes, they are a matrix of 16 columns, a vector
  // and padding.
  static std::unique_ptr<Codec> make(size_t count) {
    const CodecSpec spec = parse_codec(GetParam());
    if (spec.kind != CodecKind::kLowRank) return make_codec(spec);
    const size_t rows = count / 20, padding = count / 50;
    return make_codec(spec, {{rows, 16}, {1, count - 16 * rows - padding, padding}});
  }
};

TEST_P(EveryCodec, StatesItsBytes) {
  for (const size_t count : {1, 7, 64, 255, 256, 257, 1000, 70001}) {
    const auto codec = make(count);
    const Values x = test_values(count, 1);
    const size_t bytes = message_of(*codec, x).size();
    if (codec->fixed_rate()) {
      EXPECT_EQ(bytes, codec->encoded_bytes(count)) << count;
    } else {
      EXPECT_LE(bytes, codec->encoded_bytes(count)) << count;
    }
  }
}

TEST_P(EveryCodec, AnEmptyRange) {
  const auto codec = make(0);
  const auto message = message_of(*codec, {});
  EXPECT_LE(message.size(), codec->encoded_bytes(0));
  EXPECT_TRUE(decoded(*codec, message, 0).empty());
}

TEST_P(EveryCodec, ZerosStayZeros) {
  const auto codec = make(999);
  EXPECT_EQ(round_trip(*codec, Values(999, 0.0f)), Values(999, 0.0f));
}

TEST_P(EveryCodec, DecodeAddAddsWhatDecodeGives) {
  for (const size_t count : {5, 1000, 4113}) {
    const auto codec = make(count);
    const auto message = message_of(*codec, test_values(count, 2));
    const Values once = decoded(*codec, message, count);
    const Values start = test_values(count, 3);
    Values sum = start;
    codec->decode_add(message, sum, -1.0f);
    codec->decode_add(message, sum, 0.5f);
    for (size_t i = 0; i < count; ++i)
      ASSERT_NEAR(sum[i], start[i] - 0.5f * once[i], 1e-6f * (1 + std::fabs(once[i]))) << i;
  }
}

TEST_P(EveryCodec, RefusesMessagesOfAnotherLength) {
  const auto codec = make(1000);
  auto message = message_of(*codec, test_values(1000, 4));
  Values out(1000);
  for (const size_t length : {size_t{0}, size_t{1}, message.size() - 1, message.size() + 1}) {
    auto wrong = message;
    wrong.resize(length);
    EXPECT_THROW(codec->decode(wrong, out), CommError) << length;
    EXPECT_THROW(codec->decode_add(wrong, out), CommError) << length;
  }
  message.pop_back();
  try {
    codec->decode(message, out);
  } catch (const CommError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("codec " + codec->name() + ": a message of "));
    EXPECT_THAT(error.what(), testing::HasSubstr("all ranks need the same --codec"));
  }
}

// Random and damaged bytes give an error or some values, but never an access out of bounds, which
// AddressSanitizer would report.
TEST_P(EveryCodec, SurvivesHostileBytes) {
  std::mt19937 engine(5);
  const auto codec = make(300);
  const auto message = message_of(*codec, test_values(300, 6));
  Values out(300);
  for (int round = 0; round < 2000; ++round) {
    auto bytes = message;
    if (round % 4 == 0) bytes.resize(engine() % (2 * message.size()));
    const size_t damaged = round % 2 == 0 ? bytes.size() : std::min<size_t>(bytes.size(), 3);
    for (size_t i = 0; i < damaged; ++i)
      bytes[round % 2 == 0 ? i : engine() % bytes.size()] = static_cast<std::byte>(engine());
    try {
      round % 3 == 0 ? codec->decode_add(bytes, out) : codec->decode(bytes, out);
    } catch (const CommError&) {
    }
  }
}

TEST_P(EveryCodec, NeverDropsWhatIsNotFinite) {
  for (const float bad : {kNan, kInfinity, -kInfinity}) {
    Values x = test_values(1000, 7);
    x[100] = bad;
    const auto codec = make(1000);
    const Values out = round_trip(*codec, x);
    EXPECT_TRUE(std::any_of(out.begin(), out.end(), [](float v) { return !std::isfinite(v); })) << bad;
    // The value does not stay in the codec either.
    const Values later = round_trip(*codec, test_values(1000, 8));
    EXPECT_TRUE(std::all_of(later.begin(), later.end(), [](float v) { return std::isfinite(v); })) << bad;
  }
}

INSTANTIATE_TEST_SUITE_P(Words, EveryCodec,
                         testing::Values("none", "fp16", "bf16", "int8", "int8:block=64", "1bit",
                                         "1bit:block=8", "threshold:tau=0.05", "threshold:tau=1e-30", "prune",
                                         "prune:keep=1", "lowrank", "lowrank:form=pca,rank=3", "random-k",
                                         "random-k:keep=1,feedback=off", "qsgd", "qsgd:levels=127,norm=l2",
                                         "terngrad", "terngrad:clip=0,block=64", "signsgd", "dgc",
                                         "dgc+bf16:warmup=0", "prune+int8", "prune+fp16:keep=1",
                                         "lowrank+fp16", "lowrank+bf16:form=pca,rank=3"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
                           return name;
                         });

TEST(CodecNames, OfTheFactoryAreThoseOfTheCodecs) {
  for (const std::string& name : codec_names()) EXPECT_EQ(make_codec(name, {{4, 4}})->name(), name);
}

// Every row of the table makes a codec that keeps the contract of codec.h, whatever its settings are.
TEST(CodecNames, EveryRowOfTheTableIsACodec) {
  const std::vector<TensorShape> shapes{{30, 20, 8}, {1, 100, 28}};
  const Values x = [] {
    Values values = test_values(736, 3);
    std::fill(values.begin() + 600, values.begin() + 608, 0.0f);
    std::fill(values.begin() + 708, values.end(), 0.0f);
    return values;
  }();
  for (const CodecTraits& traits : codec_table()) {
    SCOPED_TRACE(traits.name);
    const CodecSpec spec = parse_codec(std::string(traits.name));
    EXPECT_EQ(spec.error_feedback, traits.error_feedback);
    const auto codec = make_codec(spec, shapes);
    const std::vector<std::byte> message = message_of(*codec, x);
    if (codec->fixed_rate()) {
      EXPECT_EQ(message.size(), codec->encoded_bytes(x.size()));
    }
    EXPECT_LE(message.size(), codec->encoded_bytes(x.size()));
    EXPECT_EQ(!codec->state().empty(), traits.state);
    const Values said = decoded(*codec, message, x.size());
    if (traits.contracts) {
      EXPECT_LT(norm(minus(said, x)), 1.01 * norm(x));
    }
    // FlatReplica needs it that what lies between tensors stays 0.
    for (size_t i = 600; i < 608; ++i) EXPECT_EQ(said[i], 0) << "padding at " << i;
    for (size_t i = 708; i < x.size(); ++i) EXPECT_EQ(said[i], 0) << "padding at " << i;
    EXPECT_EQ(codec->averaging() != nullptr, codec->combining() == Combining::kAveraged);
    Values out(x.size());
    EXPECT_THROW(codec->decode(std::span(message).first(message.size() - 1), out), CommError);
    if (traits.weights) {
      EXPECT_NO_THROW(parse_weight_codec(std::string(traits.name)));
    } else {
      EXPECT_THROW(parse_weight_codec(std::string(traits.name)), ConfigError);
    }
  }
}

TEST(CodecState, OfACodecWithoutOneRefusesAny) {
  const auto codec = make_codec("int8");
  codec->load_state({});
  EXPECT_THROW(codec->load_state({{"q/0", {1.0f}}}), Error);
}

}  // namespace
}  // namespace starling
