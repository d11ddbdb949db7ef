// Compares dgc with the numbers of its paper, and its all-reduce with a plain simulation of the paper. The
// simulation has error feedback, momentum correction, factor masking and the warm-up. It also counts the
// bytes of each phase by the formulas of docs/reference/codecs.md.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "starling/base/error.h"
#include "starling/codec/codec_reference.h"
#include "starling/codec/compressed_all_reduce.h"
#include "starling/codec/make_codec.h"
#include "starling/codec/stepped_codec.h"
#include "starling/testing/memory_ranks.h"

namespace starling {
namespace {

using testing::HasSubstr;

constexpr size_t kCount = 3000;
constexpr double kMomentum = 0.9;

// ---- the schedule

// Returns how many of `count` values a message of this step has.
size_t sent_at(Codec& codec, uint64_t step, size_t count) {
  codec.stepped()->set_step(step);
  const Values out = round_trip(codec, test_values(count, 3));
  return static_cast<size_t>(std::count_if(out.begin(), out.end(), [](float v) { return v != 0; }));
}

TEST(Dgc, TheWarmUpHasThePapersNumbers) {
  constexpr size_t kMany = 100000;
  const auto codec = make_codec("dgc:warmup=8");
  // The share of the values that is not sent, in %, in steps 1, 3, 5, 7 and 9.
  const std::vector<double> paper{75, 93.75, 98.4375, 99.6, 99.9};
  for (size_t phase = 0; phase < paper.size(); ++phase) {
    for (const uint64_t step : {2 * phase + 1, 2 * phase + 2}) {
      const auto sent = static_cast<double>(sent_at(*codec, step, kMany));
      EXPECT_NEAR(100 * (1 - sent / kMany), paper[phase], 0.01) << step;
    }
  }
  EXPECT_EQ(sent_at(*codec, 1, kMany), 25000u);
  EXPECT_EQ(sent_at(*codec, 3, kMany), 6250u);
  EXPECT_EQ(sent_at(*codec, 5, kMany), 1563u);
  EXPECT_EQ(sent_at(*codec, 7, kMany), 391u);
  EXPECT_EQ(sent_at(*codec, 1000000, kMany), 100u);
}

TEST(Dgc, TheWarmUpFollowsItsSettings) {
  const auto sent = [](const std::string& word, uint64_t step) {
    return sent_at(*make_codec(word), step, 10000);
  };
  EXPECT_EQ(sent("dgc", 100), 2500u);  // 400 steps in four phases
  EXPECT_EQ(sent("dgc", 101), 625u);
  EXPECT_EQ(sent("dgc", 400), 40u);
  EXPECT_EQ(sent("dgc", 401), 10u);
  EXPECT_EQ(sent("dgc", 0), 2500u);  // before the first step
  EXPECT_EQ(sent("dgc:warmup=0", 1), 10u);
  EXPECT_EQ(sent("dgc:warmup=1", 1), 2500u);
  EXPECT_EQ(sent("dgc:warmup=1", 2), 10u);
  // Three phases lie above 0.01.
  const std::vector<size_t> expected{2500, 625, 157, 100};
  for (size_t step = 1; step <= 4; ++step)
    EXPECT_EQ(sent("dgc:keep=0.01,warmup=3", step), expected[step - 1]) << step;
  EXPECT_EQ(sent("dgc:keep=0.5", 1), 5000u);  // nothing to warm up
}

// The bytes that the codec states before a step are the bound of that step's messages.
TEST(Dgc, StatesItsBytesInEveryPhase) {
  constexpr size_t kMany = 70001;
  const auto codec = make_codec("dgc:warmup=4");
  const Values x = test_values(kMany, 5);
  const std::vector<double> shares{0.25, 0.0625, 0.015625, 0.00390625, 0.001};
  for (size_t step = 1; step <= shares.size(); ++step) {
    codec->stepped()->set_step(step);
    const auto k = static_cast<size_t>(std::ceil(shares[step - 1] * kMany));
    const size_t gaps = k + std::min(k, kMany / 129) + std::min(k, kMany / 16385);
    EXPECT_EQ(codec->encoded_bytes(kMany), 4 * k + std::min(kMany, gaps)) << step;
    const auto message = message_of(*codec, x);
    EXPECT_EQ(message.size(), 4 * k + gap_bytes_reference(prune_reference(x, k), 1)) << step;
    EXPECT_EQ(decoded(*codec, message, kMany), prune_reference(x, k)) << step;
  }
}

TEST(Dgc, TheStateIsTheStep) {
  const auto codec = make_codec("dgc:warmup=8"), later = make_codec("dgc:warmup=8");
  codec->stepped()->set_step(6);
  later->load_state(codec->state());
  EXPECT_EQ(later->stepped()->step(), 6u);
  const Values x = test_values(kCount, 1);
  EXPECT_EQ(message_of(*later, x), message_of(*codec, x));
  EXPECT_NE(message_of(*later, x), message_of(*make_codec("dgc:warmup=8"), x));
  EXPECT_THROW(later->load_state({}), Error);
  EXPECT_EQ(codec->random(), nullptr);
}

std::string refusal_of(const std::string& word) {
  try {
    make_codec(word);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(Dgc, WrongSettingsAreRefused) {
  for (const char* word : {"dgc:warmup=-1", "dgc:warmup=1.5", "dgc:warmup=two", "dgc:warmup="})
    EXPECT_THAT(refusal_of(word), HasSubstr("is not a whole number from 0 to 1000000000")) << word;
  EXPECT_THAT(refusal_of("dgc:keep=0.25,warmup=10"),
              HasSubstr("codec dgc: a warm-up begins with keep = 0.25 and ends with a smaller one"));
  EXPECT_EQ(refusal_of("dgc:keep=0.25,warmup=0"), "");
  EXPECT_THAT(refusal_of("dgc:keep=0"), HasSubstr("is not a part of the elements"));
  EXPECT_THAT(refusal_of("dgc:wramup=8"), HasSubstr("did you mean 'warmup'?"));
  EXPECT_THAT(refusal_of("dgc:feedback=off,correction=on"), HasSubstr("correction=on needs feedback=on"));
  EXPECT_THAT(refusal_of("prune:warmup=8"), HasSubstr("'warmup=8' is not one of its settings"));
  EXPECT_THROW(parse_weight_codec("dgc"), ConfigError);
  EXPECT_EQ(parse_codec(to_word(parse_codec("dgc:warmup=8,keep=0.01"))),
            parse_codec("dgc:warmup=8,keep=0.01"));
}

// ---- the thresholds of the tensors

// The tensors of a range of kCount values, with padding.
const std::vector<TensorShape>& tensors() {
  static const std::vector<TensorShape> shapes{{30, 40, 16}, {1, 7, 9}, {44, 40, 8}};
  return shapes;
}

// Sets the padding to 0.
Values without_padding(Values x) {
  size_t at = 0;
  for (const TensorShape& shape : tensors()) {
    at += shape.size();
    std::fill_n(x.begin() + static_cast<std::ptrdiff_t>(at), shape.padding, 0.0f);
    at += shape.padding;
  }
  return x;
}

// Returns the values of x[begin, end) that are sent, and 0 for all other values. Each tensor sends its own
// share of the values that it has there, at least one. The range is one tensor if `shaped` is false.
Values chosen_of(const Values& x, size_t begin, size_t end, double share, bool shaped) {
  Values chosen(end - begin, 0.0f);
  size_t first = 0;
  for (const TensorShape& shape : shaped ? tensors() : std::vector<TensorShape>{{1, x.size(), 0}}) {
    const size_t from = std::max(first, begin), to = std::min(first + shape.size(), end);
    first += shape.size() + shape.padding;
    if (from >= to) continue;
    const Values tensor(x.begin() + static_cast<std::ptrdiff_t>(from),
                        x.begin() + static_cast<std::ptrdiff_t>(to));
    const auto k =
        std::max<size_t>(1, static_cast<size_t>(std::ceil(share * static_cast<double>(to - from))));
    const Values kept = prune_reference(tensor, k);
    std::copy(kept.begin(), kept.end(), chosen.begin() + static_cast<std::ptrdiff_t>(from - begin));
  }
  return chosen;
}

size_t nonzeros(const Values& x) {
  return static_cast<size_t>(std::count_if(x.begin(), x.end(), [](float v) { return v != 0; }));
}

// The second tensor is far smaller in magnitude than all others. A threshold of the whole range would leave
// it out.
TEST(Dgc, EachTensorHasAThresholdOfItsOwn) {
  Values x = without_padding(test_values(kCount, 7));
  for (size_t i = 1216; i < 1223; ++i) x[i] *= 1e-6f;
  const auto codec = make_codec(parse_codec("dgc:keep=0.01,warmup=3"), tensors());
  // ⌈keep m⌉ of the tensors of 1200, 7 and 1760 values. The padding does not count.
  const std::vector<std::pair<double, size_t>> phases{
      {0.25, 300 + 2 + 440}, {0.0625, 75 + 1 + 110}, {0.015625, 19 + 1 + 28}, {0.01, 12 + 1 + 18}};
  for (size_t step = 1; step <= phases.size(); ++step) {
    const auto [share, k] = phases[step - 1];
    codec->stepped()->set_step(step);
    const Values expected = chosen_of(x, 0, kCount, share, true);
    EXPECT_EQ(nonzeros(expected), k) << step;
    const auto message = message_of(*codec, x);
    EXPECT_EQ(decoded(*codec, message, kCount), expected) << step;
    EXPECT_EQ(message.size(), 4 * k + gap_bytes_reference(expected, 1)) << step;
    EXPECT_EQ(codec->encoded_bytes(kCount), 4 * k + std::min(kCount, k + std::min(k, kCount / 129))) << step;
  }
}

// A part of the range may lie within the padding. Its message has no bytes.
TEST(Dgc, PaddingAloneSendsNothing) {
  for (const char* word : {"dgc", "dgc+int8", "dgc+fp16"}) {
    const auto codec = make_codec(parse_codec(word), {{1, 0, 16}});
    const Values x(16, 0.0f);
    EXPECT_EQ(codec->encoded_bytes(16), 0u) << word;
    EXPECT_EQ(message_of(*codec, x).size(), 0u) << word;
    EXPECT_EQ(decoded(*codec, {}, 16), x) << word;
  }
}

// ---- the algorithm

Values gradient(int rank, int step, bool shaped = false) {
  const Values g = test_values(kCount, static_cast<unsigned>(100 * step + rank));
  return shaped ? without_padding(g) : g;
}

// The share of the values that is sent in a step, beginning at 1.
using Shares = double (*)(int step);

// warmup=8, and then keep = 0.001.
double four_phases(int step) {
  const std::vector<double> shares{0.25, 0.0625, 0.015625, 0.00390625};
  return step > 8 ? 0.001 : shares[static_cast<size_t>((step - 1) / 2)];
}

// keep=0.2,warmup=4: lists of six ranks are long in all steps.
double one_phase(int step) {
  return step <= 4 ? 0.25 : 0.2;
}

// Returns what the message of x[begin, end) says and adds its length to `bytes`. share: the share of the
// values that is sent. int8: whether the values are encoded in blocks of 256. shaped: whether the range has
// tensors().
Values told(const Values& x, size_t begin, size_t end, double share, bool int8, bool shaped, size_t& bytes) {
  Values chosen = chosen_of(x, begin, end, share, shaped);
  const size_t k = nonzeros(chosen);
  bytes += gap_bytes_reference(chosen, 1) + (int8 ? k + 4 * ((k + 255) / 256) : 4 * k);
  if (!int8) return chosen;
  Values list;
  for (const float v : chosen)
    if (v != 0) list.push_back(v);
  list = int8_reference(list, 256, {});
  size_t next = 0;
  for (float& v : chosen)
    if (v != 0) v = list[next++];
  return chosen;
}

struct Simulated {
  Values mean;
  uint64_t bytes = 0;  // of all ranks
  bool by_parts = false;
};

// Deep Gradient Compression in one thread. It keeps the velocity u and the residual r of each rank.
class PaperDgc {
 public:
  PaperDgc(size_t ranks, Shares shares, bool int8, bool shaped)
      : u_(ranks, Values(kCount, 0.0f)), r_(u_), shares_(shares), int8_(int8), shaped_(shaped) {}

  Simulated step(const std::vector<Values>& g, int step) {
    const size_t p = g.size();
    const double share = shares_(step);
    std::vector<Values> x(g);
    size_t longest = 0;
    for (size_t k = 0; k < p; ++k) {
      for (size_t i = 0; i < kCount; ++i) {
        u_[k][i] = static_cast<float>(kMomentum) * u_[k][i] + g[k][i];
        x[k][i] = r_[k][i] + u_[k][i];
      }
      size_t bytes = 0;
      told(x[k], 0, kCount, share, int8_, shaped_, bytes);
      longest = std::max(longest, bytes);
    }
    std::vector<size_t> cuts{0, kCount};
    const std::vector<size_t> parts = cuts_of(p);
    size_t longest_part = 0;
    for (size_t r = 0; r < p; ++r) longest_part = std::max(longest_part, parts[r + 1] - parts[r]);
    Simulated result{Values(kCount, 0.0f), 0, 8 + longest / p + 4 * longest_part < longest};
    if (result.by_parts) cuts = parts;
    result.bytes = p * (p - 1) * (result.by_parts ? 16 + 4 * longest_part : 8 + longest);
    for (size_t k = 0; k < p; ++k) {
      for (size_t part = 0; part + 1 < cuts.size(); ++part) {
        size_t bytes = 0;
        const Values sent = told(x[k], cuts[part], cuts[part + 1], share, int8_, shaped_, bytes);
        if (result.by_parts && part != k) result.bytes += bytes;
        for (size_t i = 0; i < sent.size(); ++i) {
          const size_t at = cuts[part] + i;
          r_[k][at] = x[k][at] - sent[i];
          if (sent[i] != 0) u_[k][at] = 0;
          result.mean[at] = k == 0 ? sent[i] : result.mean[at] + sent[i];
        }
      }
    }
    for (float& v : result.mean) v /= static_cast<float>(p);
    return result;
  }

 private:
  static std::vector<size_t> cuts_of(size_t p) {
    std::vector<size_t> cuts;
    for (size_t r = 0; r <= p; ++r) cuts.push_back(std::min(kCount, r * ((kCount + 15) / 16) / p * 16));
    return cuts;
  }

  std::vector<Values> u_, r_;
  Shares shares_;
  bool int8_, shaped_;
};

struct Case {
  std::string word;
  int ranks;
  bool one_host;
  bool shaped = false;  // whether the range has tensors()
};

class DgcExchange : public testing::TestWithParam<Case> {};

// Twelve steps pass all phases. After step 5, which is within a phase of the warm-up, new objects continue
// from the state of the first ones.
TEST_P(DgcExchange, EqualsThePaperInEveryPhaseAndResumes) {
  const auto [word, ranks, one_host, shaped] = GetParam();
  constexpr int kSteps = 12, kResumed = 5;
  const bool int8 = word.find("int8") != std::string::npos,
             long_lists = word.find("keep") != std::string::npos;
  PaperDgc paper(static_cast<size_t>(ranks), long_lists ? one_phase : four_phases, int8, shaped);
  std::vector<Simulated> expected;
  for (int step = 1; step <= kSteps; ++step) {
    std::vector<Values> g;
    for (int r = 0; r < ranks; ++r) g.push_back(gradient(r, step, shaped));
    expected.push_back(paper.step(g, step));
  }
  std::vector<std::vector<uint64_t>> sent(static_cast<size_t>(ranks));
  run_on_memory(ranks, one_host, [&](Group& group) {
    const auto make = [&] {
      return std::make_unique<CompressedAllReduce>(
          group, parse_codec(word), shaped ? tensors() : std::vector<TensorShape>{}, kCount, kMomentum);
    };
    auto exchange = make();
    for (int step = 1; step <= kSteps; ++step) {
      if (step == kResumed + 1) {
        const std::vector<float> state = exchange->state();
        EXPECT_EQ(state.size(), 2 + 2 * kCount);  // the step, the residual and the velocity
        exchange = make();
        exchange->load_state(state);
      }
      const uint64_t before = exchange->sent(), scattered = exchange->scattered();
      Values data = gradient(group.rank(), step, shaped);
      exchange->apply(data);
      const Simulated& want = expected[static_cast<size_t>(step - 1)];
      ASSERT_EQ(data, want.mean) << "step " << step << " rank " << group.rank();
      EXPECT_EQ(exchange->scattered() - scattered, want.by_parts ? 1u : 0u) << step;
      sent[static_cast<size_t>(group.rank())].push_back(exchange->sent() - before);
    }
  });
  for (const auto& of_rank : sent) ASSERT_EQ(of_rank.size(), expected.size());
  for (size_t step = 0; step < expected.size(); ++step) {
    uint64_t all = 0;
    for (const auto& of_rank : sent) all += of_rank[step];
    EXPECT_EQ(all, expected[step].bytes) << "step " << step + 1;
  }
  // With five ranks, the lists of the first phase are so long that they are sent by parts.
  EXPECT_EQ(expected[0].by_parts, long_lists || (!int8 && ranks == 5));
  EXPECT_EQ(expected[11].by_parts, long_lists);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, DgcExchange,
    testing::Values(Case{"dgc:warmup=8", 1, true}, Case{"dgc:warmup=8", 2, true},
                    Case{"dgc:warmup=8", 3, false}, Case{"dgc:warmup=8", 4, true},
                    Case{"dgc:warmup=8", 5, true}, Case{"dgc:keep=0.2,warmup=4", 6, true},
                    Case{"dgc+int8:warmup=8", 2, false}, Case{"dgc+int8:warmup=8", 3, true},
                    Case{"dgc+int8:warmup=8", 4, true}, Case{"dgc:warmup=8", 3, true, true},
                    Case{"dgc:keep=0.2,warmup=4", 6, true, true}, Case{"dgc+int8:warmup=8", 2, true, true}),
    [](const auto& info) {
      return std::string(info.param.word.find("int8") != std::string::npos ? "int8_" : "") +
             (info.param.shaped ? "tensors_" : "") + (info.param.one_host ? "window_" : "network_") +
             std::to_string(info.param.ranks);
    });

// What the ranks have sent and what their residuals hold is the sum of their gradients.
TEST(DgcExchange, LosesNothingInTheWarmUp) {
  constexpr int kRanks = 3, kSteps = 12;
  std::vector<Values> kept(kRanks);
  Values arrived(kCount, 0.0f);
  run_on_memory(kRanks, true, [&](Group& group) {
    CompressedAllReduce exchange(group, parse_codec("dgc:warmup=8"), {}, kCount);
    Values sum(kCount, 0.0f);
    for (int step = 1; step <= kSteps; ++step) {
      Values data = gradient(group.rank(), step);
      exchange.apply(data);
      for (size_t i = 0; i < kCount; ++i) sum[i] += data[i];
    }
    const std::vector<float> state = exchange.state();
    kept[static_cast<size_t>(group.rank())].assign(state.begin() + 2, state.begin() + 2 + kCount);
    if (group.rank() == 0) arrived = sum;
  });
  Values expected(kCount, 0.0f);
  for (int k = 0; k < kRanks; ++k) {
    for (int step = 1; step <= kSteps; ++step) {
      const Values g = gradient(k, step);
      for (size_t i = 0; i < kCount; ++i) expected[i] += g[i] / kRanks;
    }
    for (size_t i = 0; i < kCount; ++i) arrived[i] += kept[static_cast<size_t>(k)][i] / kRanks;
  }
  EXPECT_LT(norm(minus(arrived, expected)), 1e-6 * norm(expected));
}

// A run that begins anew after a checkpoint would send too many values.
TEST(DgcExchange, TheStepInTheStateDecidesTheShare) {
  run_on_memory(2, true, [](Group& group) {
    const auto sent_after = [&](bool with_step) {
      CompressedAllReduce exchange(group, parse_codec("dgc:warmup=8"), {}, kCount);
      std::vector<float> state(2 + kCount, 0.0f);
      state[0] = with_step ? 100.0f : 0.0f;
      exchange.load_state(state);
      Values data = gradient(group.rank(), 1);
      exchange.apply(data);
      return exchange.sent();
    };
    EXPECT_LT(sent_after(true), 40u);
    EXPECT_GT(sent_after(false), 3000u);
  });
}

}  // namespace
}  // namespace starling
