// Compares what ranks gather in pieces with what they have sent, and long ranges of CompressedAllReduce with
// a naive mean.
#include "starling/codec/gather_in_pieces.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <utility>

#include "starling/codec/codec_reference.h"
#include "starling/codec/compressed_all_reduce.h"
#include "starling/codec/make_codec.h"
#include "starling/testing/memory_ranks.h"

namespace starling {
namespace {

using testing::ElementsAre;
using testing::Pair;
using Ranges = std::vector<std::pair<size_t, size_t>>;

// Byte i of the message of a rank.
std::byte byte_of(int rank, size_t i) {
  return static_cast<std::byte>((i * 31 + i / 251) % 256 + rank);
}

// Gathers `count` values of two bytes and returns the pieces that were encoded.
Ranges gathered(Group& group, size_t count) {
  Ranges encoded, decoded;
  std::vector<std::byte> own, all;
  size_t wrong = 0;
  gather_in_pieces(
      group, count, 2, own, all,
      [&](size_t begin, size_t end, std::span<std::byte> out) {
        encoded.emplace_back(begin, end);
        for (size_t i = 0; i < out.size(); ++i) out[i] = byte_of(group.rank(), 2 * begin + i);
      },
      [&](size_t begin, size_t end, std::span<const std::byte> messages) {
        decoded.emplace_back(begin, end);
        const size_t bytes = 2 * (end - begin);
        EXPECT_EQ(messages.size(), bytes * static_cast<size_t>(group.size()));
        for (int r = 0; r < group.size(); ++r) {
          for (size_t i = 0; i < bytes; ++i)
            wrong += messages[static_cast<size_t>(r) * bytes + i] != byte_of(r, 2 * begin + i) ? 1 : 0;
        }
      });
  EXPECT_EQ(wrong, 0U);
  EXPECT_EQ(encoded, decoded);
  return encoded;
}

TEST(GatherInPieces, ALongRangeGoesInFourPieces) {
  for (const int p : {2, 3, 5}) {
    run_on_memory(p, false, [&](Group& group) {
      const size_t count = (size_t{4} << 20) + 3;
      const uint64_t before = group.traffic().sent();
      EXPECT_THAT(gathered(group, count), ElementsAre(Pair(0, 1048577), Pair(1048577, 2097154),
                                                      Pair(2097154, 3145731), Pair(3145731, count)));
      // The bytes are those of one all-gather.
      EXPECT_EQ(group.traffic().sent() - before, static_cast<uint64_t>(p - 1) * 2 * count);
    });
  }
}

TEST(GatherInPieces, AShortRangeOrOneHostHasOnePiece) {
  for (const auto& [count, one_host] : {std::pair{size_t{1000}, false},
                                        {size_t{0}, false},
                                        {(size_t{1} << 20) - 1, false},
                                        {size_t{4} << 20, true}}) {
    run_on_memory(3, one_host, [&, count = count](Group& group) {
      EXPECT_THAT(gathered(group, count), ElementsAre(Pair(0, count)));
    });
  }
}

// Afterwards no started operation uses the memory, and the ranks go on.
TEST(GatherInPieces, AnErrorOfACallerIsThrownWhenNothingIsOnItsWay) {
  for (const bool while_encoding : {true, false}) {
    run_on_memory(2, false, [&](Group& group) {
      std::vector<std::byte> own, all;
      const auto encode = [&](size_t begin, size_t, std::span<std::byte>) {
        if (while_encoding && begin > 0) throw std::runtime_error("here");
      };
      const auto decode = [&](size_t, size_t, std::span<const std::byte>) {
        throw std::runtime_error("here");
      };
      EXPECT_THROW(gather_in_pieces(group, size_t{4} << 20, 2, own, all, encode, decode), std::runtime_error);
      EXPECT_THAT(gathered(group, 100), ElementsAre(Pair(0, 100)));
    });
  }
}

struct Case {
  std::string word;
  int ranks;
};

class LongRange : public testing::TestWithParam<Case> {};

// The naive form: every value is rounded by its rank and, with more than two ranks, by its owner.
class NaiveMean {
 public:
  NaiveMean(const CodecSpec& spec, size_t ranks, size_t count)
      : spec_(spec), residual_(ranks, Values(count, 0.0F)), second_(count, 0.0F) {}
  Values of(const std::vector<Values>& x) {
    Values mean(second_.size(), 0.0F);
    for (size_t r = 0; r < x.size(); ++r) {
      const Values sent = told(x[r], residual_[r]);
      for (size_t i = 0; i < mean.size(); ++i) mean[i] += sent[i];
    }
    for (float& m : mean) m /= static_cast<float>(x.size());
    return x.size() > 2 ? told(mean, second_) : mean;
  }

 private:
  Values told(Values v, Values& residual) const {
    for (size_t i = 0; spec_.error_feedback && i < v.size(); ++i) v[i] += residual[i];
    const Values sent = round_trip(*make_codec(spec_, {}), v);
    for (size_t i = 0; i < v.size(); ++i) residual[i] = v[i] - sent[i];
    return sent;
  }
  const CodecSpec spec_;
  std::vector<Values> residual_;
  Values second_;
};

TEST_P(LongRange, EqualsTheNaiveMeanOnEveryRank) {
  const auto& [word, ranks] = GetParam();
  const CodecSpec spec = parse_codec(word);
  const size_t count = (size_t{3} << 20) + 40;  // parts of different lengths
  const auto values = [&](int rank, int step) {
    return test_values(count, static_cast<unsigned>(10 * step + rank));
  };
  NaiveMean naive(spec, static_cast<size_t>(ranks), count);
  std::vector<Values> expected;
  for (int step = 0; step < 2; ++step) {
    std::vector<Values> x;
    for (int r = 0; r < ranks; ++r) x.push_back(values(r, step));
    expected.push_back(naive.of(x));
  }
  run_on_memory(ranks, false, [&](Group& group) {
    CompressedAllReduce exchange(group, spec, {}, count);
    for (int step = 0; step < 2; ++step) {
      Values data = values(group.rank(), step);
      exchange.apply(data);
      EXPECT_TRUE(data == expected[static_cast<size_t>(step)]) << "step " << step << " rank " << group.rank();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Cases, LongRange,
                         testing::Values(Case{"fp16", 2}, Case{"fp16", 3}, Case{"bf16", 3},
                                         Case{"fp16:feedback=on", 2}, Case{"fp16:feedback=on", 3}),
                         [](const auto& info) {
                           std::string name = info.param.word + std::to_string(info.param.ranks);
                           std::erase_if(name, [](char c) { return c == ':' || c == '='; });
                           return name;
                         });

}  // namespace
}  // namespace starling
