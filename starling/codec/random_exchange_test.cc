// Compares the mean or the vote of several ranks, by the codecs that draw, with naive simulations. qsgd,
// terngrad and random-k are compared by their means, and signsgd by counted votes. Other tests compare the
// bytes, and resumed runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "starling/base/error.h"
#include "starling/codec/codec_reference.h"
#include "starling/codec/codec_test_bytes.h"
#include "starling/codec/compressed_all_reduce.h"
#include "starling/codec/make_codec.h"
#include "starling/codec/random_codec.h"
#include "starling/codec/random_reference.h"
#include "starling/testing/memory_ranks.h"
#include "starling/testing/thorough.h"

namespace starling {
namespace {

constexpr size_t kCount = 1600;
constexpr uint64_t kSeed = 23;
constexpr int kSteps = 4;

CodecSpec spec_of(const std::string& word) {
  CodecSpec spec = parse_codec(word);
  spec.seed = kSeed;
  return spec;
}

Values gradient(int rank, int step) {
  return test_values(kCount, static_cast<unsigned>(100 * step + rank));
}

// Calls data(rank, step) for the arrays of each step, and returns what the ranks got, by step. All ranks must
// get equal bits. After half of the steps, new objects continue from the state of the first ones.
template <typename Data>
std::vector<Values> run_exchange(const std::string& word, int ranks, bool one_host, const Data& data) {
  std::vector<std::vector<Values>> of_ranks(static_cast<size_t>(ranks));
  run_on_memory(ranks, one_host, [&](Group& group) {
    std::vector<float> state;
    for (int first = 1; first <= kSteps; first += kSteps / 2) {
      CompressedAllReduce exchange(group, spec_of(word), {}, kCount);
      if (first > 1) exchange.load_state(state);
      for (int step = first; step < first + kSteps / 2; ++step) {
        Values values = data(group.rank(), step);
        exchange.apply(values);
        of_ranks[static_cast<size_t>(group.rank())].push_back(values);
      }
      state = exchange.state();
    }
  });
  for (const auto& rank : of_ranks) EXPECT_EQ(rank, of_ranks[0]);
  return of_ranks[0];
}

// Returns what a message with this key says, by a codec of its own.
Values told(const std::string& word, const Values& x, size_t begin, size_t end, uint64_t step,
            size_t stream) {
  const auto codec = make_codec(spec_of(word));
  codec->random()->set_key(step, stream);
  return round_trip(*codec, std::span(x).subspan(begin, end - begin));
}

// The mean of one step: parts are sent to their owners and back, or whole messages to all ranks.
Values mean_reference(const std::string& word, const std::vector<Values>& x, uint64_t step) {
  const size_t p = x.size();
  const bool parts = p > 2;
  const std::vector<size_t> cuts = parts ? cuts_reference(kCount, p) : std::vector<size_t>{0, kCount};
  Values result;
  for (size_t part = 0; part + 1 < cuts.size(); ++part) {
    Values sum;
    for (size_t k = 0; k < p; ++k) {
      const Values said = told(word, x[k], cuts[part], cuts[part + 1], step, 2 * p * part + k);
      if (k == 0) sum = said;
      for (size_t i = 0; i < said.size() && k > 0; ++i) sum[i] += said[i];
    }
    for (float& v : sum) v /= static_cast<float>(p);
    if (parts) sum = told(word, sum, 0, sum.size(), step, 2 * p * part + p + part);
    result.insert(result.end(), sum.begin(), sum.end());
  }
  return result;
}

struct Case {
  std::string word;
  int ranks;
  bool one_host;
};

std::string name_of_case(const testing::TestParamInfo<Case>& info) {
  std::string name = info.param.word + (info.param.one_host ? "_window_" : "_network_");
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name + std::to_string(info.param.ranks);
}

class RandomMean : public testing::TestWithParam<Case> {};

TEST_P(RandomMean, EqualsTheNaiveExchangeAndResumes) {
  const auto [word, ranks, one_host] = GetParam();
  const std::vector<Values> found = run_exchange(word, ranks, one_host, gradient);
  for (int step = 1; step <= kSteps; ++step) {
    std::vector<Values> x;
    for (int r = 0; r < ranks; ++r) x.push_back(gradient(r, step));
    EXPECT_EQ(found[static_cast<size_t>(step - 1)], mean_reference(word, x, static_cast<uint64_t>(step)))
        << step;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, RandomMean,
                         testing::Values(Case{"qsgd", 1, true}, Case{"qsgd", 2, true}, Case{"qsgd", 3, false},
                                         Case{"qsgd:levels=1,norm=l2", 5, true}, Case{"terngrad", 2, false},
                                         Case{"terngrad", 4, true}, Case{"terngrad:clip=0", 5, false}),
                         name_of_case);

// Over many steps, the mean of what the ranks get approaches the mean of their gradients. The owner rounds at
// random for a second time, which changes no expectation.
TEST(RandomMeans, OfManyStepsAreUnbiased) {
  constexpr int kDraws = 400;
  for (const char* word : {"qsgd:levels=2", "terngrad:clip=0"}) {
    run_on_memory(3, true, [&](Group& group) {
      CompressedAllReduce exchange(group, spec_of(word), {}, kCount);
      std::vector<double> sum(kCount, 0);
      for (int step = 1; step <= kDraws; ++step) {
        Values data = gradient(group.rank(), 1);
        exchange.apply(data);
        for (size_t i = 0; i < kCount; ++i) sum[i] += static_cast<double>(data[i]) / kDraws;
      }
      // A value is rounded twice by at most the scale of its block, which no gradient of the test exceeds.
      const Values a = gradient(0, 1), b = gradient(1, 1), c = gradient(2, 1);
      double largest = 0;
      for (const Values* x : {&a, &b, &c})
        for (const float v : *x) largest = std::max(largest, std::fabs(static_cast<double>(v)));
      for (size_t i = 0; i < kCount; ++i)
        ASSERT_NEAR(sum[i], (static_cast<double>(a[i]) + b[i] + c[i]) / 3, 5 * largest / std::sqrt(kDraws))
            << i;
    });
  }
}

// ---- majority vote

// A gradient whose signs are often equal and often opposite, with some zeros.
Values ballot(int rank, int step) {
  Values x = gradient(rank, step);
  for (size_t i = 0; i < kCount; ++i) {
    if (i % 5 == 0) x[i] = rank % 2 == 0 ? 2.0f : -0.1f;
    if (i % 7 == 0) x[i] = 0;
  }
  return x;
}

struct Votes {
  std::vector<double> result;
  size_t ties = 0, up = 0;  // up: ties that were decided as +
};

// Counts the votes of each element. The owner of a part decides a tie by its own draw.
Votes votes_reference(const std::vector<Values>& x, uint64_t step) {
  const size_t p = x.size();
  const std::vector<size_t> cuts = cuts_reference(kCount, p);
  Votes votes;
  for (size_t part = 0; part < p; ++part) {
    for (size_t i = cuts[part]; i < cuts[part + 1]; ++i) {
      int sum = 0;
      for (size_t k = 0; k < p; ++k)
        sum += static_cast<int>(sign_reference(x[k][i], i - cuts[part], {kSeed, step, 2 * p * part + k}));
      const double sign = sign_reference(sum, i - cuts[part], {kSeed, step, 2 * p * part + p + part});
      votes.ties += sum == 0 ? 1 : 0;
      votes.up += sum == 0 && sign > 0 ? 1 : 0;
      votes.result.push_back(sign);
    }
  }
  return votes;
}

class MajorityVote : public testing::TestWithParam<Case> {};

// Each element gets the sign of the majority. A tie, which only an even number of ranks can have, gets a sign
// that is fair and equal on all ranks.
TEST_P(MajorityVote, EqualsTheCountedVotesAndResumes) {
  const auto [word, ranks, one_host] = GetParam();
  const std::vector<Values> found = run_exchange(word, ranks, one_host, ballot);
  size_t ties = 0, up = 0;
  for (int step = 1; step <= kSteps; ++step) {
    std::vector<Values> x;
    for (int r = 0; r < ranks; ++r) x.push_back(ballot(r, step));
    const Votes expected = votes_reference(x, static_cast<uint64_t>(step));
    const Values& result = found[static_cast<size_t>(step - 1)];
    EXPECT_EQ(std::vector<double>(result.begin(), result.end()), expected.result) << step;
    ties += expected.ties;
    up += expected.up;
  }
  if (ranks % 2 == 1) {
    EXPECT_EQ(ties, 0u);
    return;
  }
  ASSERT_GT(ties, 1000u);
  EXPECT_NEAR(static_cast<double>(up), static_cast<double>(ties) / 2,
              5 * std::sqrt(static_cast<double>(ties)) / 2);
}

INSTANTIATE_TEST_SUITE_P(Cases, MajorityVote,
                         testing::Values(Case{"signsgd", 2, true}, Case{"signsgd", 2, false},
                                         Case{"signsgd", 3, true}, Case{"signsgd", 4, true},
                                         Case{"signsgd", 4, false}, Case{"signsgd", 5, true},
                                         Case{"signsgd", 5, false}),
                         name_of_case);

// Three of five ranks outvote two, and two of five cannot change the result, whatever the size of their
// values is.
TEST(Vote, TheSizeOfAValueDoesNotCount) {
  run_on_memory(5, true, [](Group& group) {
    CompressedAllReduce exchange(group, spec_of("signsgd"), {}, kCount);
    Values data(kCount, group.rank() < 3 ? 1e-6f : -1e6f);
    exchange.apply(data);
    EXPECT_EQ(data, Values(kCount, 1.0f));
  });
}

// A tensor whose gradient is 0 on all ranks does not move. One rank without a gradient abstains.
TEST(Vote, OfZerosIsZero) {
  const std::vector<TensorShape> shapes{{1, 800, 0}, {1, 800, 0}};
  run_on_memory(4, true, [&](Group& group) {
    CompressedAllReduce exchange(group, spec_of("signsgd"), shapes, kCount);
    Values data(kCount, 0.0f);
    if (group.rank() != 2) std::fill(data.begin() + 800, data.end(), group.rank() == 0 ? 1.0f : -1.0f);
    exchange.apply(data);
    for (size_t i = 0; i < kCount; ++i) ASSERT_EQ(data[i], i < 800 ? 0.0f : -1.0f) << i;
  });
}

TEST(Vote, OfOneRankIsItsSign) {
  run_on_memory(1, true, [](Group& group) {
    CompressedAllReduce exchange(group, spec_of("signsgd"), {}, kCount);
    Values data = gradient(0, 1);
    const Values before = data;
    exchange.apply(data);
    for (size_t i = 0; i < kCount; ++i) ASSERT_EQ(data[i], before[i] > 0 ? 1.0f : -1.0f);
  });
}

TEST(Vote, ANanOfOneRankReachesAll) {
  run_on_memory(4, true, [](Group& group) {
    CompressedAllReduce exchange(group, spec_of("signsgd"), {}, kCount);
    Values data = gradient(group.rank(), 1);
    if (group.rank() == 3) data[5] = std::nanf("");
    exchange.apply(data);
    EXPECT_TRUE(std::isnan(data[5]));
  });
}

// ---- random-k

// Simulates memory-SGD with equal positions on all ranks in fp64 (algorithm 1 of the paper).
TEST(RandomKMean, EqualsThePaperAndResumes) {
  for (const int ranks : {1, 2, 3, 5}) {
    for (const bool one_host : {true, false}) {
      const std::vector<Values> found = run_exchange("random-k:keep=0.2", ranks, one_host, gradient);
      std::vector<std::vector<double>> memory(static_cast<size_t>(ranks), std::vector<double>(kCount, 0));
      for (int step = 1; step <= kSteps; ++step) {
        const std::set<size_t> chosen =
            positions_reference(kCount, kCount / 5, kSeed, static_cast<uint64_t>(step));
        std::vector<double> mean(kCount, 0);
        for (int r = 0; r < ranks; ++r) {
          std::vector<double>& m = memory[static_cast<size_t>(r)];
          const Values g = gradient(r, step);
          for (size_t i = 0; i < kCount; ++i) m[i] += g[i];
          for (const size_t i : chosen) {
            mean[i] += m[i] / ranks;
            m[i] = 0;
          }
        }
        for (size_t i = 0; i < kCount; ++i)
          ASSERT_NEAR(found[static_cast<size_t>(step - 1)][i], mean[i], 1e-6)
              << ranks << " " << step << " " << i;
      }
    }
  }
}

// Without error feedback the mean is multiplied by n / k.
TEST(RandomKMean, WithoutErrorFeedbackIsMultiplied) {
  const std::vector<Values> found = run_exchange("random-k:keep=0.25,feedback=off", 2, true, gradient);
  for (int step = 1; step <= kSteps; ++step) {
    const std::set<size_t> chosen =
        positions_reference(kCount, kCount / 4, kSeed, static_cast<uint64_t>(step));
    const Values a = gradient(0, step), b = gradient(1, step);
    for (size_t i = 0; i < kCount; ++i)
      ASSERT_NEAR(found[static_cast<size_t>(step - 1)][i],
                  chosen.contains(i) ? 2 * (static_cast<double>(a[i]) + b[i]) : 0, 1e-6);
  }
}

// ---- states and bytes

// A run that does not load its state draws the numbers of the first steps again.
TEST(RandomStates, AreTheStepAndTheResidual) {
  run_on_memory(3, true, [](Group& group) {
    for (const auto& [word, residual] :
         std::vector<std::pair<std::string, size_t>>{{"qsgd", 0},
                                                     {"terngrad", 0},
                                                     {"signsgd", 0},
                                                     {"random-k", kCount},
                                                     {"random-k:feedback=off", 0}}) {
      CompressedAllReduce exchange(group, spec_of(word), {}, kCount), fresh(group, spec_of(word), {}, kCount);
      for (int step = 1; step <= 3; ++step) {
        Values data = ballot(group.rank(), step);
        exchange.apply(data);
      }
      const std::vector<float> state = exchange.state();
      ASSERT_EQ(state.size(), 2 + residual) << word;
      EXPECT_EQ(state[0], 3) << word;
      Values again = ballot(group.rank(), 4), resumed = again;
      fresh.apply(again);
      exchange.apply(resumed);
      EXPECT_NE(again, resumed) << word;
      EXPECT_THROW(fresh.load_state(Values(1, 0.0f)), Error) << word;
      EXPECT_THROW(fresh.load_state(Values(state.size(), 0.5f)), Error) << word;
    }
  });
}

// With a momentum, the state also has the velocity: m u + g of all steps.
TEST(RandomStates, OfAVoteHaveTheVelocity) {
  run_on_memory(3, true, [](Group& group) {
    CompressedAllReduce exchange(group, spec_of("signsgd"), {}, kCount, 0.5);
    Values expected(kCount, 0.0f);
    for (int step = 1; step <= 3; ++step) {
      Values data = ballot(group.rank(), step);
      for (size_t i = 0; i < kCount; ++i) expected[i] = 0.5f * expected[i] + data[i];
      exchange.apply(data);
    }
    const std::vector<float> state = exchange.state();
    EXPECT_EQ(Values(state.begin() + 2, state.end()), expected);
    CompressedAllReduce off(group, spec_of("signsgd:correction=off"), {}, kCount, 0.5);
    EXPECT_EQ(off.state().size(), 2u);
  });
}

// Returns what all ranks together have sent in one exchange, by the counters.
uint64_t sent_by_all(const std::string& word, size_t count, int ranks, bool one_host) {
  std::vector<uint64_t> of_ranks(static_cast<size_t>(ranks));
  run_on_memory(ranks, one_host, [&](Group& group) {
    CompressedAllReduce exchange(group, spec_of(word), {}, count);
    Values data = test_values(count, static_cast<unsigned>(group.rank()));
    barrier(group);
    const uint64_t before = group.traffic().sent();
    exchange.apply(data);
    of_ranks[static_cast<size_t>(group.rank())] = group.traffic().sent() - before;
    EXPECT_EQ(exchange.sent(), group.traffic().sent() - before);
  });
  uint64_t sum = 0;
  for (const uint64_t sent : of_ranks) sum += sent;
  return sum;
}

// Returns the bytes of a message by docs/reference/codecs.md, without the codec.
uint64_t message_reference(const std::string& word, size_t n) {
  const size_t blocks = (n + 255) / 256;
  if (word == "signsgd") return 4 + (n + 7) / 8;
  const size_t bits = word == "qsgd" ? 4 : word == "qsgd:levels=1" ? 2 : word == "qsgd:levels=127" ? 8 : 2;
  return 4 * blocks + n / 256 * (32 * bits) + (n % 256 * bits + 7) / 8;
}

TEST(RandomBytes, AreThoseOfTheFormulaInWindowsAndBetweenHosts) {
  constexpr size_t kValues = 60512;
  for (const std::string word :
       {"random-k", "qsgd", "qsgd:levels=1", "qsgd:levels=127", "terngrad", "signsgd"}) {
    for (int ranks = 2; ranks <= (thorough() ? 8 : 4); ++ranks) {
      SCOPED_TRACE(word + ", ranks " + std::to_string(ranks));
      const auto p = static_cast<size_t>(ranks);
      uint64_t expected = 0;
      if (word == "random-k") {
        expected = 2 * (p - 1) * 4 * ((6052 + p - 1) / p * p);  // k = ceil(0.1 n), padded to a multiple of p
      } else if (ranks == 2 && word != "signsgd") {
        expected = p * (p - 1) * message_reference(word, kValues);
      } else {
        const std::vector<size_t> cuts = cuts_reference(kValues, p);
        uint64_t all = 0, longest = 0;
        for (size_t part = 0; part < p; ++part) {
          const uint64_t b = message_reference(word, cuts[part + 1] - cuts[part]);
          all += b;
          longest = std::max(longest, b);
        }
        expected = (p - 1) * (all + p * longest);
      }
      EXPECT_EQ(sent_by_all(word, kValues, ranks, true), expected);
      EXPECT_EQ(sent_by_all(word, kValues, ranks, false), expected);
    }
  }
}

TEST(RandomBytes, OfNothingAreNone) {
  for (const int ranks : {1, 2, 3}) {
    run_on_memory(ranks, true, [](Group& group) {
      for (const char* word : {"random-k", "qsgd", "terngrad", "signsgd"}) {
        CompressedAllReduce exchange(group, spec_of(word), {{0, 0}}, 0);
        exchange.apply({});
        EXPECT_EQ(exchange.sent(), 0u) << word;
      }
    });
  }
}

}  // namespace
}  // namespace starling
