// Tests every algorithm between hosts, for 1 … 17 ranks and for even and uneven sizes. The ranks are
// threads that are connected in memory.
//
// Results are compared with a naive reduction. What was moved is compared with the formulas of
// comm/choice/cost.h. A replay of all ranks' messages in the cost model gives the steps and bytes of the
// longest chain.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <thread>
#include <tuple>
#include <vector>

#include "starling/base/error.h"
#include "starling/comm/choice/cost.h"
#include "starling/comm/collective/binomial_tree.h"
#include "starling/comm/collective/bruck.h"
#include "starling/comm/collective/by_name.h"
#include "starling/comm/collective/collective_test_values.h"
#include "starling/comm/collective/dissemination.h"
#include "starling/comm/collective/double_tree.h"
#include "starling/comm/collective/pairwise.h"
#include "starling/comm/collective/ring.h"
#include "starling/net/memory/memory_endpoint.h"
#include "starling/testing/thorough.h"

namespace starling {
namespace {

using Buffer = std::vector<std::byte>;
using Traces = std::vector<MoveTrace>;

// Ranks holds p ranks. Each is connected to all other ranks.
class Ranks {
 public:
  explicit Ranks(int p) {
    std::vector<RemoteSetup> setups(p);
    std::vector<int> all;
    for (int r = 0; r < p; ++r) {
      all.push_back(r);
      setups[r].rank = r;
      setups[r].timeout = std::chrono::seconds(30);
      setups[r].host_names.assign(p, "node");
      setups[r].endpoints.resize(p);
    }
    for (int a = 0; a < p; ++a) {
      for (int b = a + 1; b < p; ++b)
        std::tie(setups[a].endpoints[b], setups[b].endpoints[a]) = make_memory_endpoints();
    }
    for (int r = 0; r < p; ++r) peers_.push_back(std::make_unique<RemotePeers>(std::move(setups[r])));
    for (int r = 0; r < p; ++r) teams_.push_back(std::make_unique<RemoteTeam>(*peers_[r], all, r));
  }

  // Calls body(team) on every rank at the same time, in one thread each, several times. Returns what each
  // rank has moved.
  template <typename Body>
  Traces run(const Body& body) {
    Traces traces(teams_.size());
    std::vector<std::thread> threads;
    threads.reserve(teams_.size());
    for (size_t r = 0; r < teams_.size(); ++r) {
      threads.emplace_back([&, r] {
        teams_[r]->record(&traces[r]);
        peers_[r]->begin({.kind = CollectiveKind::kAllReduce, .sequence = 1});
        body(*teams_[r]);
        teams_[r]->record(nullptr);
      });
    }
    for (auto& thread : threads) thread.join();
    return traces;
  }

 private:
  std::vector<std::unique_ptr<RemotePeers>> peers_;
  std::vector<std::unique_ptr<RemoteTeam>> teams_;
};

double total_bytes(const Traces& traces) {
  double sum = 0;
  for (const MoveTrace& trace : traces) {
    for (const auto& step : trace.steps) {
      for (const auto& message : step.sent) sum += static_cast<double>(message.bytes);
    }
  }
  return sum;
}

// Replay computes the time of the moves in the cost model. Messages of one step leave one after another, each
// o and its bytes later. A rank that receives several messages gets them one after another. Sending waits for
// no other rank.
class Replay {
 public:
  Replay(const Traces& traces, const LinkCost& link)
      : traces_(traces), link_(link), next_(traces.size(), 0), time_(traces.size(), 0) {
    arrivals_.resize(traces.size() * traces.size());
    taken_.resize(arrivals_.size(), 0);
    started_.resize(traces.size(), false);
  }

  double seconds() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t r = 0; r < traces_.size(); ++r) moved = advance(r) || moved;
    }
    for (size_t r = 0; r < traces_.size(); ++r) EXPECT_EQ(next_[r], traces_[r].steps.size());
    return *std::max_element(time_.begin(), time_.end());
  }

 private:
  struct Arrival {
    double start;  // when the step that sent it began
    double end;
  };

  bool advance(size_t r) {
    if (next_[r] == traces_[r].steps.size()) return false;
    const auto& step = traces_[r].steps[next_[r]];
    const bool begins = !started_[r];
    double sent = time_[r];
    if (begins) {
      started_[r] = true;
      double port = 0;
      for (size_t i = 0; i < step.sent.size(); ++i) {
        port += link_.beta * static_cast<double>(step.sent[i].bytes) + (i > 0 ? link_.overhead : 0);
        arrivals_[r * traces_.size() + step.sent[i].peer].push_back(
            {time_[r], time_[r] + link_.alpha + port});
      }
      sent_[r] = step.sent.empty() ? sent : sent + link_.alpha + port;
    }
    std::vector<size_t> wanted(traces_.size(), 0);
    double first = 1e300, last = 0, port = 0;
    for (const auto& message : step.received) {
      const size_t queue = message.peer * traces_.size() + r;
      const size_t at = taken_[queue] + wanted[message.peer]++;
      if (at >= arrivals_[queue].size()) return begins;
      first = std::min(first, std::max(time_[r], arrivals_[queue][at].start));
      last = std::max(last, arrivals_[queue][at].end);
      port += link_.beta * static_cast<double>(message.bytes);
    }
    for (size_t peer = 0; peer < traces_.size(); ++peer) taken_[peer * traces_.size() + r] += wanted[peer];
    double end = sent_[r];
    if (!step.received.empty()) {
      const double further = link_.overhead * static_cast<double>(step.received.size() - 1);
      end = std::max({end, last, first + link_.alpha + further + port});
    }
    time_[r] = std::max(time_[r], end);
    ++next_[r];
    started_[r] = false;
    return true;
  }

  const Traces& traces_;
  const LinkCost link_;
  std::vector<size_t> next_;
  std::vector<double> time_;
  std::map<size_t, double> sent_;
  std::vector<std::vector<Arrival>> arrivals_;  // the messages from r to peer are at index r p + peer
  std::vector<size_t> taken_;
  std::vector<bool> started_;
};

// Compares what was moved with the formula. `slack` is how many bytes a step of uneven parts may differ: 64
// per part.
void expect_cost(const Traces& traces, const CollectiveCost& cost, double slack) {
  const double steps = Replay(traces, {1, 0, 0}).seconds();
  const double further = Replay(traces, {0, 1, 0}).seconds();
  const double bytes = Replay(traces, {0, 0, 1}).seconds();
  EXPECT_EQ(steps, cost.steps);
  EXPECT_LE(further, cost.further);
  EXPECT_LE(bytes, cost.bytes + slack * cost.steps);
  if (!cost.at_most) {
    EXPECT_EQ(further, cost.further);
    EXPECT_GE(bytes, cost.bytes - slack * cost.steps);
  }
  EXPECT_DOUBLE_EQ(total_bytes(traces), cost.total_bytes);
}

class Algorithms : public testing::TestWithParam<int> {
 protected:
  Algorithms() : ranks(GetParam()) {}
  const int p = GetParam();
  Ranks ranks;
};

TEST_P(Algorithms, AllReduce) {
  struct Case {
    size_t count;
    DataType type;
    ReduceOp op;
  };
  // The first size divides evenly among all ranks. The last size has several segments of the double tree.
  const Case cases[] = {{static_cast<size_t>(16 * 16 * p), DataType::kFp32, ReduceOp::kAvg},
                        {0, DataType::kFp32, ReduceOp::kSum},
                        {1, DataType::kInt64, ReduceOp::kSum},
                        {997, DataType::kFp64, ReduceOp::kMax},
                        {2311, DataType::kBf16, ReduceOp::kSum},
                        {140'001, DataType::kInt32, ReduceOp::kSum}};
  int salt = 0;
  for (const Algorithm algorithm : algorithms_of(CollectiveKind::kAllReduce)) {
    for (const Case& c : cases) {
      if (c.count > 100'000 && algorithm != Algorithm::kDoubleTree && p % 5 != 0) continue;
      if (c.count > 100'000 && p > 5 && !thorough()) continue;
      SCOPED_TRACE(std::string(name_of(algorithm)) + " " + std::to_string(c.count));
      const Buffer expected = reduced_tensor(c.type, c.count, p, c.op, ++salt);
      const Traces traces = ranks.run([&](RemoteTeam& team) {
        Buffer data = test_tensor(c.type, c.count, team.me(), salt);
        all_reduce_by(algorithm, team, data.data(), c.count, {c.type, c.op, c.op == ReduceOp::kAvg ? p : 1});
        EXPECT_TRUE(equal_bytes(data, expected)) << "rank " << team.me();
      });
      const double bytes = static_cast<double>(c.count * size_of(c.type));
      const CollectiveCost cost = cost_of(CollectiveKind::kAllReduce, algorithm, p, bytes);
      expect_cost(traces, cost, &c == &cases[0] ? 0 : 64.0 * p);
    }
  }
}

class LongRings : public Algorithms {};

// The long parts of a ring travel in segments, all steps at once. They give the same values and move the same
// bytes.
TEST_P(LongRings, GoInSegments) {
  int salt = 900;
  for (const size_t part_bytes :
       {2 * kRingSegmentBytes - 128, 2 * kRingSegmentBytes, 5 * kRingSegmentBytes}) {
    const size_t count = part_bytes / 4 * static_cast<size_t>(p) + 5;
    const Buffer expected = reduced_tensor(DataType::kFp32, count, p, ReduceOp::kAvg, ++salt);
    const Traces traces = ranks.run([&](RemoteTeam& team) {
      Buffer data = test_tensor(DataType::kFp32, count, team.me(), salt);
      ring_all_reduce(team, data.data(), count, {DataType::kFp32, ReduceOp::kAvg, p});
      EXPECT_TRUE(equal_bytes(data, expected)) << "rank " << team.me();
    });
    const size_t k = part_bytes / kRingSegmentBytes;
    EXPECT_DOUBLE_EQ(total_bytes(traces), 2.0 * (p - 1) * static_cast<double>(count) * 4);
    for (const MoveTrace& trace : traces) {
      size_t messages = 0;
      for (const auto& step : trace.steps) messages += step.sent.size();
      EXPECT_EQ(trace.steps.size(), k == 1 ? 2 * static_cast<size_t>(p - 1) : 1);
      EXPECT_EQ(messages, 2 * static_cast<size_t>(p - 1) * k);
    }
  }
}

TEST_P(Algorithms, ReduceScatter) {
  const size_t count = 333;
  for (const Algorithm algorithm : algorithms_of(CollectiveKind::kReduceScatter)) {
    SCOPED_TRACE(name_of(algorithm));
    const size_t bytes = count * 4;
    const Traces traces = ranks.run([&](RemoteTeam& team) {
      const Buffer in = test_tensor(DataType::kFp32, count * p, team.me(), 3);
      Buffer out(bytes);
      std::vector<ConstBytes> parts;
      parts.reserve(static_cast<size_t>(p));
      for (int i = 0; i < p; ++i) parts.emplace_back(in.data() + i * bytes, bytes);
      reduce_scatter_by(algorithm, team, parts, out.data(), {DataType::kFp32, ReduceOp::kSum, 1});
      const Buffer whole = reduced_tensor(DataType::kFp32, count * p, p, ReduceOp::kSum, 3);
      EXPECT_TRUE(std::equal(out.begin(), out.end(), whole.begin() + team.me() * bytes));
    });
    expect_cost(traces, cost_of(CollectiveKind::kReduceScatter, algorithm, p, bytes * p), 0);
  }
}

TEST_P(Algorithms, AllGather) {
  for (const Algorithm algorithm : algorithms_of(CollectiveKind::kAllGather)) {
    // Bruck's algorithm takes equal parts only.
    for (const bool even : {true, false}) {
      if (!even && algorithm == Algorithm::kBruck) continue;
      SCOPED_TRACE(name_of(algorithm));
      std::vector<size_t> starts = {0};
      for (int r = 0; r < p; ++r) starts.push_back(starts.back() + (even ? 501 : r * 37 % 100));
      Buffer expected(starts.back());
      for (size_t i = 0; i < expected.size(); ++i) expected[i] = static_cast<std::byte>(i * 7);
      const Traces traces = ranks.run([&](RemoteTeam& team) {
        Buffer out(starts.back());
        std::vector<Bytes> parts;
        parts.reserve(static_cast<size_t>(p));
        for (int r = 0; r < p; ++r) parts.emplace_back(out.data() + starts[r], starts[r + 1] - starts[r]);
        const Bytes own = parts[team.me()];
        std::copy_n(expected.begin() + starts[team.me()], own.size(), own.begin());
        all_gather_by(algorithm, team, parts);
        EXPECT_TRUE(equal_bytes(out, expected));
      });
      const double bytes = static_cast<double>(starts.back());
      if (even) expect_cost(traces, cost_of(CollectiveKind::kAllGather, algorithm, p, bytes), 0);
      EXPECT_EQ(total_bytes(traces), (p - 1) * bytes);
    }
  }
}

// Long parts of an all-gather are passed on in segments, all steps at once. Short and empty parts go between
// them in one message each.
TEST_P(LongRings, PartsArePassedOnInSegments) {
  const size_t sizes[] = {3 * kRingSegmentBytes + 100, 0, 1000};
  std::vector<size_t> starts = {0}, segments;
  for (int r = 0; r < p; ++r) {
    starts.push_back(starts.back() + sizes[r % 3]);
    segments.push_back(r % 3 == 0 ? 3 : 1);
  }
  Buffer expected(starts.back());
  for (size_t i = 0; i < expected.size(); ++i) expected[i] = static_cast<std::byte>(i * 7 + i / 4096);
  const Traces traces = ranks.run([&](RemoteTeam& team) {
    Buffer out(starts.back());
    std::vector<Bytes> parts;
    for (int r = 0; r < p; ++r) parts.emplace_back(out.data() + starts[r], starts[r + 1] - starts[r]);
    const Bytes own = parts[team.me()];
    std::copy_n(expected.begin() + starts[team.me()], own.size(), own.begin());
    ring_all_gather(team, parts);
    EXPECT_TRUE(equal_bytes(out, expected)) << "rank " << team.me();
  });
  EXPECT_EQ(total_bytes(traces), (p - 1) * static_cast<double>(starts.back()));
  const size_t all = std::accumulate(segments.begin(), segments.end(), size_t{0});
  for (int r = 0; r < p; ++r) {
    size_t messages = 0;
    for (const auto& step : traces[r].steps) messages += step.sent.size();
    // A rank sends all parts but that of the rank after it. Two ranks pass nothing on.
    EXPECT_EQ(messages, p == 2 ? 1 : all - segments[(r + 1) % p]) << "rank " << r;
    EXPECT_EQ(traces[r].steps.size(), 1u);
  }
}

TEST_P(Algorithms, AllToAll) {
  const size_t block = 240;
  for (const Algorithm algorithm : algorithms_of(CollectiveKind::kAllToAll)) {
    SCOPED_TRACE(name_of(algorithm));
    const auto value = [](int from, int to, size_t i) {
      return static_cast<std::byte>(from * 31 + to * 7 + i);
    };
    const Traces traces = ranks.run([&](RemoteTeam& team) {
      Buffer in(block * p), out(block * p);
      std::vector<ConstBytes> sent;
      std::vector<Bytes> expected;
      for (int r = 0; r < p; ++r) {
        for (size_t i = 0; i < block; ++i) in[r * block + i] = value(team.me(), r, i);
        sent.emplace_back(in.data() + r * block, block);
        expected.emplace_back(out.data() + r * block, block);
      }
      if (algorithm == Algorithm::kBruck) {
        bruck_all_to_all(team, in.data(), out.data(), block);
      } else {
        std::copy(sent[team.me()].begin(), sent[team.me()].end(), expected[team.me()].begin());
        pairwise_all_to_all(team, sent, expected, std::vector<bool>(p, false));
      }
      for (size_t i = 0; i < out.size(); ++i)
        ASSERT_EQ(out[i], value(static_cast<int>(i / block), team.me(), i % block)) << i;
    });
    expect_cost(traces, cost_of(CollectiveKind::kAllToAll, algorithm, p, static_cast<double>(block * p)), 0);
  }
}

TEST_P(Algorithms, BroadcastFromEveryRootAndBarrier) {
  for (int root = 0; root < p; ++root) {
    const Buffer expected = test_tensor(DataType::kFp32, 100, root, root);
    const Traces traces = ranks.run([&](RemoteTeam& team) {
      Buffer data = team.me() == root ? expected : Buffer(expected.size());
      binomial_broadcast(team, data.data(), data.size(), root);
      EXPECT_TRUE(equal_bytes(data, expected));
    });
    expect_cost(traces, cost_of(CollectiveKind::kBroadcast, Algorithm::kBinomialTree, p, 400), 0);
  }
  const Traces barrier = ranks.run([&](RemoteTeam& team) { dissemination_barrier(team); });
  expect_cost(barrier, cost_of(CollectiveKind::kBarrier, Algorithm::kDissemination, p, 0), 0);
  ranks.run([&](RemoteTeam& team) {
    EXPECT_EQ(dissemination_minimum(team, team.me() == p / 2 ? 3 : 9), 3);
    EXPECT_EQ(dissemination_minimum(team, 1), 1);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Algorithms, testing::Range(1, 18));

// Ranks wait for each other before they send long parts. The values and bytes are those of short parts, and
// the steps are those of the formula.
TEST_P(LongRings, LongPartsGoInSteps) {
  const size_t bytes = kPacedBytes, count = bytes / 4 * static_cast<size_t>(p);
  const Elements elements{DataType::kFp32, ReduceOp::kSum, 1};
  const Buffer expected = reduced_tensor(DataType::kFp32, count, p, ReduceOp::kSum, 77);
  const Traces reduced = ranks.run([&](RemoteTeam& team) {
    Buffer data = test_tensor(DataType::kFp32, count, team.me(), 77);
    all_reduce_by(Algorithm::kDirect, team, data.data(), count, elements);
    EXPECT_TRUE(equal_bytes(data, expected)) << "rank " << team.me();
  });
  expect_cost(reduced, cost_of(CollectiveKind::kAllReduce, Algorithm::kDirect, p, 4.0 * count), 0);
  const Traces exchanged = ranks.run([&](RemoteTeam& team) {
    const Buffer in(bytes * p, static_cast<std::byte>(team.me()));
    Buffer out(bytes * p);
    std::vector<ConstBytes> sent;
    std::vector<Bytes> arriving;
    for (int i = 0; i < p; ++i) {
      sent.push_back(ConstBytes(in).subspan(i * bytes, bytes));
      arriving.push_back(Bytes(out).subspan(i * bytes, bytes));
    }
    pairwise_all_to_all(team, sent, arriving, std::vector<bool>(p, false));
    for (int i = 0; i < p; ++i)
      ASSERT_TRUE(i == team.me() || std::ranges::count(arriving[i], static_cast<std::byte>(i)) == bytes) << i;
  });
  expect_cost(exchanged, cost_of(CollectiveKind::kAllToAll, Algorithm::kPairwise, p, 1.0 * bytes * p), 0);
}

// Blocks of any length, in any mixture, arrive.
TEST_P(LongRings, UnevenBlocksAreExchanged) {
  const size_t lengths[] = {0, 8, kPacedBytes - 8, kPacedBytes, 8 * kPacedBytes + 4};
  const auto length = [&](int from, int to) { return lengths[(from * 7 + to * 3 + from * to) % 5]; };
  const auto value = [](int from, int to) { return static_cast<std::byte>(from * 16 + to); };
  ranks.run([&](RemoteTeam& team) {
    const int me = team.me();
    std::vector<Buffer> in(p), out(p);
    for (int i = 0; i < p; ++i) {
      in[i].assign(length(me, i), value(me, i));
      out[i].resize(length(i, me));
    }
    pairwise_all_to_all(team, std::vector<ConstBytes>(in.begin(), in.end()),
                        std::vector<Bytes>(out.begin(), out.end()), std::vector<bool>(p, false));
    for (int i = 0; i < p; ++i)
      ASSERT_TRUE(i == me || out[i] == Buffer(length(i, me), value(i, me))) << i << " to " << me;
  });
}

// Exchanges among 3 ranks, in which rank 0 sends `sent` bytes to rank 2, which expects `expected` bytes.
// Other blocks are empty. Returns the error of rank 2.
std::string error_of_unequal_splits(size_t sent, size_t expected) {
  Ranks ranks(3);
  std::string error_of_2;
  ranks.run([&](RemoteTeam& team) {
    const Buffer in(sent);
    Buffer out(expected);
    std::vector<ConstBytes> blocks(3);
    std::vector<Bytes> arriving(3);
    if (team.me() == 0) blocks[2] = in;
    if (team.me() == 2) arriving[0] = out;
    try {
      pairwise_all_to_all(team, blocks, arriving, std::vector<bool>(3, false));
    } catch (const CommError& error) {
      if (team.me() == 2) error_of_2 = error.what();
    }
  });
  return error_of_2;
}

// The ranks would otherwise wait for each other until the timeout.
TEST(Pairwise, ALongBlockThatAnotherRankDoesNotExpectIsFound) {
  const size_t lengths[] = {0, 8, 100, kPacedBytes, kPacedBytes + 8};
  for (const size_t sent : lengths) {
    for (const size_t expected : lengths) {
      if (sent == expected || std::max(sent, expected) < kPacedBytes) continue;
      const std::string begin = "rank 0 (node) sent " + std::to_string(sent) + " bytes, which rank 2 (node) ";
      EXPECT_THAT(error_of_unequal_splits(sent, expected),
                  testing::HasSubstr(begin + "did not expect; the splits of both must agree"))
          << sent << " bytes for " << expected;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, LongRings,
                         testing::ValuesIn(thorough() ? std::vector{2, 3, 4, 5, 8} : std::vector{2, 3}));

TEST(DoubleTree, EveryRankIsInsideOneTreeOnly) {
  for (int p = 1; p <= 130; ++p) {
    const auto trees = double_trees(p);
    EXPECT_EQ(trees[0].height, trees[1].height);
    EXPECT_LE(1 << trees[0].height, std::max(1, 2 * p - 1)) << p;  // height ≤ ⌈log2 p⌉
    int twice = 0;
    for (int r = 0; r < p; ++r) {
      for (const Tree& tree : trees) EXPECT_LE(tree.children[r].size(), 2u);
      twice += !trees[0].children[r].empty() && !trees[1].children[r].empty() ? 1 : 0;
    }
    EXPECT_LE(twice, 1) << p;  // the root of the first tree, which has one child
  }
}

}  // namespace
}  // namespace starling
