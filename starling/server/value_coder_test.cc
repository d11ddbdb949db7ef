#include "starling/server/value_coder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "starling/base/error.h"
#include "starling/codec/random_codec.h"
#include "starling/server/client.h"
#include "starling/server/serve.h"
#include "starling/testing/run_ranks.h"

namespace starling {
namespace {

constexpr size_t kRows = 12, kCols = 10, kRest = 7;  // a matrix and a vector
constexpr int kSteps = 4;

std::vector<float> gradient_of(int worker, int step, const std::vector<float>& x) {
  std::vector<float> g(x.size());
  for (size_t i = 0; i < x.size(); ++i)
    g[i] = x[i] - std::sin(static_cast<float>(1 + worker) * static_cast<float>(i + 3 * step));
  return g;
}

// A decoder does not know the step of a message, so a warm-up would be decoded wrongly.
TEST(ValueCoder, RefusesACodecWhoseMessagesDependOnTheStep) {
  const std::vector<TensorShape> shapes = {{kRows, kCols}};
  for (const char* word : {"dgc", "dgc+int8"}) {
    try {
      const ValueCoder<float> coder(parse_codec(word), shapes, true);
      FAIL() << word;
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("depends on the step")) << word;
    }
  }
  const ValueCoder<float> random(parse_codec("qsgd"), shapes, true);
  EXPECT_GT(random.bytes_of(kRows * kCols), 0u);
}

std::vector<float> decoded(const Codec& codec, std::span<const std::byte> bytes, size_t count) {
  std::vector<float> out(count);
  codec.decode(bytes, out);
  return out;
}

// Simulates synchronous SGD of two workers whose gradients and weights pass through codecs, without code of
// the server.
std::vector<float> simulate(const CodecSpec& push, const CodecSpec& pull) {
  const std::vector<TensorShape> shapes = {{kRows, kCols}, {1, kRest}};
  const size_t n = kRows * kCols + kRest;
  std::vector<std::unique_ptr<Codec>> codecs = {};
  std::vector<ErrorFeedback> feedback(2, ErrorFeedback(n));
  for (int w = 0; w < 2; ++w) codecs.push_back(make_codec(push, shapes));
  const auto weights = make_codec(pull, shapes);
  std::vector<float> master(n, 1.0f), x(n);
  for (int step = 0; step <= kSteps; ++step) {
    std::vector<std::byte> bytes(weights->encoded_bytes(n));
    bytes.resize(weights->encode(master, bytes));
    x = decoded(*weights, bytes, n);
    if (step == kSteps) break;
    std::vector<std::vector<float>> g;
    for (int w = 0; w < 2; ++w) {
      const std::vector<float> own = gradient_of(w, step, x);
      bytes.assign(codecs[w]->encoded_bytes(n), std::byte{});
      if (RandomCodec* random = codecs[w]->random())
        random->set_key(static_cast<uint64_t>(step) + 1, static_cast<uint64_t>(w));  // one server
      bytes.resize(push.error_feedback ? feedback[w].encode(*codecs[w], own, bytes)
                                       : codecs[w]->encode(own, bytes));
      g.push_back(decoded(*codecs[w], bytes, n));
    }
    for (size_t i = 0; i < n; ++i) master[i] -= 0.1f * ((g[0][i] + g[1][i]) * 0.5f);
  }
  return x;
}

class CodedServer : public testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(CodedServer, EqualsASimulationAndItsBytesTheFormula) {
  const auto [push, pull] = GetParam();
  run_ranks(3, [&](const ThreadRank& at) {
    ServerRendezvous m;
    m.workers = 2;
    m.server_timeout = std::chrono::seconds(20);
    ServerOptions options;
    options.workers = 2;
    options.optimizer.momentum = 0;
    options.push_codec = parse_codec(push);
    options.pull_codec = parse_codec(pull);
    if (at.rank == 2) {
      EXPECT_TRUE(serve_shard(*at.store, m, 0, options, DataType::kFp32).lost.empty());
      return;
    }
    const size_t n = kRows * kCols + kRest;
    ServerClient<float> client(
        *at.store, m, at.rank, make_partitioning({kRows * kCols, kRest}, 4, 1),
        {{0, kRows * kCols}, {}, options.push_codec, options.pull_codec, {{kRows, kCols}, {1, kRest}}});
    std::vector<float> x(n, 1.0f);
    if (at.rank == 0) {
      client.load(x.data(), {}, 0);
    } else {
      client.expect_load();
    }
    client.pull(x.data());
    const uint64_t before = client.bytes_sent() + client.bytes_received();
    for (int step = 0; step < kSteps; ++step) {
      const std::vector<float> g = gradient_of(at.rank, step, x);
      client.push(g.data(), {.lr = 0.1});
      client.pull(x.data());
    }
    const uint64_t bytes = client.bytes_sent() + client.bytes_received() - before;
    if (std::string(push).starts_with("prune")) {
      EXPECT_LE(bytes, kSteps * (client.push_bytes() + client.pull_bytes()));
    } else {
      EXPECT_EQ(bytes, kSteps * (client.push_bytes() + client.pull_bytes()));
    }
    EXPECT_LT((client.push_bytes() + client.pull_bytes()), 2 * n * 4 + 3 * kHeadBytes);
    const std::vector<float> expected = simulate(options.push_codec, options.pull_codec);
    for (size_t i = 0; i < n; ++i) ASSERT_NEAR(x[i], expected[i], 1e-6f) << "element " << i;
    client.goodbye();
  });
}

INSTANTIATE_TEST_SUITE_P(Codecs, CodedServer,
                         testing::Values(std::pair("1bit", "fp16"), std::pair("int8", "none"),
                                         std::pair("lowrank:rank=2", "none"),
                                         std::pair("prune:keep=0.1", "none"), std::pair("qsgd", "none"),
                                         std::pair("terngrad:block=16", "none"),
                                         std::pair("prune+int8:keep=0.1,block=8", "none"),
                                         std::pair("lowrank+fp16:rank=2", "none"),
                                         std::pair("none", "lowrank+bf16:form=pca,rank=3"),
                                         std::pair("none", "lowrank:form=pca,rank=3")));

// A worker that resumes draws the numbers of the messages that follow. Two workers draw different numbers.
TEST(ValueCoder, ContinuesFromItsState) {
  const std::vector<TensorShape> shapes = {{kRows, kCols}, {1, kRest}};
  const std::vector<float> g = gradient_of(0, 1, std::vector<float>(kRows * kCols + kRest, 0.0f));
  for (const char* word : {"qsgd", "terngrad", "1bit"}) {
    ValueCoder<float> whole(parse_codec(word), shapes, true, 3), half(parse_codec(word), shapes, true, 3),
        rest(parse_codec(word), shapes, true, 3), other(parse_codec(word), shapes, true, 4);
    const auto message = [&](ValueCoder<float>& coder) {
      const auto bytes = coder.encode(g);
      return std::vector<std::byte>(bytes.begin(), bytes.end());
    };
    const auto first = message(whole);
    EXPECT_EQ(message(half), first) << word;
    EXPECT_EQ(message(other) != first, std::string(word) != "1bit") << word;
    rest.load_state(half.state());
    const auto second = message(whole);
    EXPECT_EQ(message(rest), second) << word;
    EXPECT_NE(second, first) << word;
    EXPECT_EQ(rest.state(), whole.state()) << word;
  }
}

TEST(ValueCoder, RefusesDoublesAndLengthsThatCannotBe) {
  EXPECT_THROW(ValueCoder<double>(parse_codec("int8"), {{1, 4}}, true), ConfigError);
  EXPECT_NO_THROW(ValueCoder<double>(parse_codec("none"), {{1, 4}}, true));
  ServerOptions options;
  options.push_codec = parse_codec("fp16");
  run_ranks(1, [&](const ThreadRank& at) {
    EXPECT_THROW(serve_shard(*at.store, ServerRendezvous{}, 0, options, DataType::kFp64), ConfigError);
  });
}

}  // namespace
}  // namespace starling
