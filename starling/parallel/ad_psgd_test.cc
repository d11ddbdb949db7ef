// AD-PSGD on real processes in fp64. A script fixes the order in which ranks begin and end their steps. A
// simulation of algorithm 1 of the paper in plain loops must then give equal weights. Other tests let the
// ranks run freely. The task is that of center_test_task.h, but the center also depends on the step.
#include "starling/parallel/ad_psgd.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "starling/base/clock.h"
#include "starling/base/error.h"
#include "starling/base/keyed_random.h"
#include "starling/comm/network/tcp_connections.h"
#include "starling/parallel/center_test_task.h"
#include "starling/spec/neighbor_graph.h"
#include "starling/testing/error_of.h"
#include "starling/testing/memory_ranks.h"
#include "starling/testing/test_identity.h"
#include "starling/torch_testing/torch_group_processes.h"

namespace starling {
namespace {

constexpr int kDim = kCenterElements;
constexpr double kLr = 0.1, kMomentum = 0.6;
constexpr uint64_t kSeed = 11;
constexpr std::chrono::seconds kPatience{60};

using Vec = std::vector<double>;

double center(int rank, int64_t step, int d) {
  return center_of(rank, d) + 0.2 * std::cos(static_cast<double>(step) + d);
}

// The model has a buffer, which holds the mean of the last batch.
Model quadratic() {
  Model model = center_model<at::kDouble>();
  const at::Tensor seen = model.module->register_buffer("seen", torch::zeros({1}, torch::kDouble));
  model.forward = [forward = model.forward, seen](const at::Tensor& c) {
    seen.fill_(c.detach().mean());
    return forward(c);
  };
  return model;
}

Batch batch_of(int rank, int64_t step) {
  return center_batch(at::kDouble, [=](int d) { return center(rank, step, d); });
}

std::unique_ptr<AdPsgd> make(GossipGraph graph, Group& group, const Clock& clock, double momentum) {
  OptimizerSpec spec;
  spec.momentum = momentum;
  FlatReplicaOptions options;
  options.master = options.working = at::kDouble;
  options.rank = group.rank();
  options.seed = kSeed;
  return std::make_unique<AdPsgd>(quadratic, make_update_rule(spec), options, graph, group, clock);
}

// Makes a whole step. Returns whether all ranks stop after it.
bool make_step(AdPsgd& strategy, int rank, int64_t step, double lr, bool asks = false) {
  strategy.begin_step({step, lr, asks});
  strategy.forward_backward(batch_of(rank, step));
  return strategy.update().stop;
}

// Returns the agreed model. Collective.
Vec mean_of(AdPsgd& strategy) {
  strategy.consensus();
  return evaluated_x(strategy);
}

// Returns x of every rank, one after another, on rank 0. Collective.
Vec all_of(AdPsgd& strategy, int ranks) {
  const StrategyState state = strategy.state();
  Vec all;
  for (int r = 0; r < ranks && !state.parameters.empty(); ++r) {
    const Vec x = doubles_in(state.optimizer.at("x@" + std::to_string(r) + "/x"));
    all.insert(all.end(), x.begin(), x.end());
  }
  return all;
}

double distance(const Vec& a, const Vec& b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

// What a rank does while all other ranks wait.
struct Event {
  int rank = 0;
  bool begins = false;  // computes the gradient of its next step; an active rank also averages
  bool ends = false;    // applies the gradient
};

// Returns steps `first` to `last` of all ranks in some order. Passive ranks begin first, because they answer
// from then on. Between the two halves of a step of a passive rank other ranks make steps, perhaps many.
// Those of an active rank follow each other, because other events between them would race with its average.
std::vector<Event> script_of(const std::vector<bool>& active, int64_t first, int64_t last, uint64_t key) {
  const auto ranks = active.size();
  std::vector<int64_t> next(ranks, first);
  std::vector<bool> begun(ranks, false);
  std::vector<Event> events;
  for (size_t r = 0; r < ranks; ++r) {
    if (active[r]) continue;
    events.push_back({static_cast<int>(r), true, false});
    begun[r] = true;
  }
  for (uint64_t draw = 0; std::any_of(next.begin(), next.end(), [&](int64_t n) { return n <= last; });
       ++draw) {
    const size_t r = key_of(key, draw, 0) % ranks;
    if (next[r] > last) continue;
    const bool begins = active[r] || !begun[r], ends = active[r] || begun[r];
    events.push_back({static_cast<int>(r), begins, ends});
    begun[r] = begins && !ends;
    if (ends) ++next[r];
  }
  return events;
}

// Executes the events from step `first` on.
void play(const std::vector<Event>& events, int64_t first, AdPsgd& strategy, Group& group) {
  int64_t step = first;
  for (const Event& event : events) {
    if (event.rank == group.rank()) {
      if (event.begins) {
        strategy.begin_step({step, kLr, false});
        strategy.forward_backward(batch_of(event.rank, step));
      }
      if (event.ends) {
        strategy.update();
        ++step;
      }
    }
    barrier(group);
  }
}

// Algorithm 1. Returns x of all ranks.
Vec simulate(GossipGraph graph, const std::vector<bool>& active, const std::vector<Event>& events) {
  const auto ranks = active.size();
  std::vector<Vec> x(ranks, first_x()), velocity(ranks, Vec(kDim, 0)), gradient(ranks);
  std::vector<int64_t> step(ranks, 1);
  for (const Event& event : events) {
    const auto i = static_cast<size_t>(event.rank);
    if (event.begins) {
      gradient[i].clear();
      for (int d = 0; d < kDim; ++d) gradient[i].push_back(x[i][d] - center(event.rank, step[i], d));
    }
    if (active[i]) {
      const auto neighbors = neighbors_of(graph, event.rank, static_cast<int>(ranks)).hears;
      const auto j = static_cast<size_t>(chosen_neighbor(neighbors, kSeed, event.rank, step[i]));
      for (int d = 0; d < kDim; ++d) x[i][d] = x[j][d] = (x[i][d] + x[j][d]) / 2;
    }
    if (!event.ends) continue;
    for (int d = 0; d < kDim; ++d) {
      velocity[i][d] = kMomentum * velocity[i][d] - kLr * gradient[i][d];
      x[i][d] += velocity[i][d];
    }
    ++step[i];
  }
  Vec all;
  for (const Vec& own : x) all.insert(all.end(), own.begin(), own.end());
  return all;
}

TEST(AdPsgd, FollowsAlgorithm1OfThePaper) {
  const std::vector<std::pair<GossipGraph, int>> cases = {
      {GossipGraph::kRing, 2}, {GossipGraph::kRing, 4}, {GossipGraph::kTorus, 8}};
  for (const auto& [graph, ranks] : cases) {
    const std::vector<bool> active = active_ranks_of(graph, ranks);
    const std::vector<Event> events = script_of(active, 1, 12, 5);
    const auto real = values_of_processes(ranks, [&](Group& group, Store&) {
      const SystemClock clock;
      const auto strategy = make(graph, group, clock, kMomentum);
      play(events, 1, *strategy, group);
      return all_of(*strategy, group.size());
    });
    EXPECT_LE(distance(real[0], simulate(graph, active, events)), 1e-12) << ranks << " ranks";
  }
}

// The ranks run freely, but they meet every ten steps. A rank that had finished all its steps early would no
// longer approach the others. With gradients off, averages keep the mean, and all ranks approach it.
TEST(AdPsgd, AveragesKeepTheMeanAndLeadEveryRankToIt) {
  for (const int ranks : {2, 4, 6}) {
    const auto real = values_of_processes(ranks, [](Group& group, Store&) {
      const SystemClock clock;
      const auto strategy = make(GossipGraph::kRing, group, clock, 0);
      for (int64_t step = 1; step <= 5; ++step) make_step(*strategy, group.rank(), step, kLr);
      Vec found = mean_of(*strategy);
      const double before = strategy->strategy_stats().at("disagreement");
      for (int64_t step = 6; step <= 605; ++step) {
        make_step(*strategy, group.rank(), step, 0);
        if (step % 10 == 0) strategy->consensus();
      }
      const Vec after = mean_of(*strategy);
      found.insert(found.end(), after.begin(), after.end());
      const Vec all = all_of(*strategy, group.size());
      found.insert(found.end(), {before, strategy->strategy_stats().at("disagreement")});
      found.insert(found.end(), all.begin(), all.end());
      return found;
    });
    const Vec mean(real[0].begin(), real[0].begin() + kDim);
    const Vec after(real[0].begin() + kDim, real[0].begin() + 2 * kDim);
    EXPECT_LE(distance(mean, after), 1e-12) << ranks << " ranks";
    EXPECT_GT(real[0][2 * kDim], 1e-3) << "the ranks were equal before";
    EXPECT_LE(real[0][2 * kDim + 1], 1e-9);
    for (int r = 0; r < ranks; ++r) {
      const auto own = real[0].begin() + 2 * kDim + 2 + r * kDim;
      EXPECT_LE(distance(mean, Vec(own, own + kDim)), 1e-9) << "rank " << r << " of " << ranks;
    }
  }
}

// One rank stays in its first step until all other ranks have made all their steps.
TEST(AdPsgd, ASlowRankDoesNotSlowTheOthers) {
  constexpr int kRanks = 4;
  constexpr int64_t kSteps = 40;
  for (int slow = 0; slow < kRanks; ++slow) {
    const auto found = numbers_of_processes(kRanks, [slow](Group& group, Store& store) {
      const SystemClock clock;
      const auto strategy = make(GossipGraph::kRing, group, clock, kMomentum);
      const auto key = [slow](int rank) {
        return "slow" + std::to_string(slow) + "/done" + std::to_string(rank);
      };
      for (int64_t step = 1; step <= kSteps; ++step) {
        strategy->begin_step({step, kLr, false});
        strategy->forward_backward(batch_of(group.rank(), step));
        for (int r = 0; r < kRanks && step == 1 && group.rank() == slow; ++r) {
          if (r != slow) store.get(key(r), kPatience);
        }
        strategy->update();
      }
      store.put(key(group.rank()), "");
      const StrategyStats stats = strategy->strategy_stats();
      return Numbers{{"exchanges", stats.at("exchanges")}, {"lead", stats.at("largest_lead")}};
    });
    for (const Numbers& rank : found) {
      EXPECT_EQ(rank.at("exchanges"), 2 * kSteps);
      // The last ranks that average with the slow one are about kSteps ahead of it.
      EXPECT_GE(rank.at("lead"), kSteps / 2) << "rank " << slow << " is slow";
      EXPECT_LT(rank.at("lead"), kSteps);
    }
  }
}

TEST(AdPsgd, AllRanksStopAfterOneStep) {
  constexpr int kRanks = 4;
  for (const int asks : {0, 1, 2}) {
    const auto found = numbers_of_processes(kRanks, [asks](Group& group, Store&) {
      const SystemClock clock;
      const auto strategy = make(GossipGraph::kRing, group, clock, kMomentum);
      Numbers stops;
      int64_t further = 5;  // steps after the stop
      for (int64_t step = 1; further > 0; ++step) {
        const bool asking = group.rank() == asks && step >= 7 && stops.empty();
        if (make_step(*strategy, group.rank(), step, kLr, asking))
          stops["stop" + std::to_string(stops.size())] = static_cast<double>(step);
        if (!stops.empty()) --further;
      }
      strategy->consensus();
      return stops;
    });
    for (const Numbers& rank : found) EXPECT_EQ(rank, found[0]) << "rank " << asks << " asks";
    EXPECT_EQ(found[0].size(), 1u);
    EXPECT_GE(found[0].at("stop0"), 7);
  }
}

std::unique_ptr<Group> join_over_tcp(Store& store, const Group& whole) {
  GroupSetup setup;
  setup.rank = whole.rank();
  setup.size = whole.size();
  setup.options.timeout = kPatience;
  setup.options.shared_memory = false;
  setup.options.algorithm = Algorithm::kDirect;
  setup.connect = tcp_connector("127.0.0.1", test_identity("pairs"));
  std::vector<int> all;
  for (int r = 0; r < whole.size(); ++r) all.push_back(r);
  return make_group(store, subset_of(setup, "tcp", all));
}

// Returns what this rank sends in `steps` steps and the meeting after them.
double bytes_of(Group& group, int64_t steps) {
  const SystemClock clock;
  const auto strategy = make(GossipGraph::kRing, group, clock, kMomentum);
  barrier(group);
  const auto sent = [&] { return static_cast<double>(group.traffic().sent()); };
  const double before = sent();
  for (int64_t step = 1; step <= steps; ++step) make_step(*strategy, group.rank(), step, kLr);
  strategy->consensus();
  const double middle = sent();
  strategy->consensus();  // sends what the first consensus sent, but for the meeting
  return 2 * middle - sent() - before;
}

TEST(AdPsgd, BytesAreThoseOfTheFormula) {
  constexpr int64_t kSteps = 6;
  constexpr double kBytes = 8 * 128;  // the flat memory has a multiple of 64 elements
  for (const int ranks : {2, 4, 6}) {
    const auto found = numbers_of_processes(ranks, [](Group& windows, Store& store) {
      const auto tcp = join_over_tcp(store, windows);
      return Numbers{{"windows", bytes_of(windows, kSteps)}, {"tcp", bytes_of(*tcp, kSteps)}};
    });
    for (const char* network : {"windows", "tcp"}) {
      double sum = 0;
      for (const Numbers& rank : found) sum += rank.at(network);
      // Half of the ranks are active.
      const int active = ranks / 2;
      EXPECT_EQ(sum, active * kSteps * (2 * kBytes + 8) + 2 * 16 * (ranks - 1)) << network << ' ' << ranks;
    }
  }
}

// Ranks are threads here, so that they share the state. Their order is that of a script, so a resumed run
// must have the bits of a run that was not interrupted.
TEST(AdPsgd, IsResumedBitForBit) {
  constexpr int kRanks = 4;
  const std::vector<bool> active = active_ranks_of(GossipGraph::kRing, kRanks);
  const auto first = script_of(active, 1, 5, 1), second = script_of(active, 6, 10, 2);
  StrategyState state;
  Vec whole, resumed;
  run_on_memory(kRanks, false, [&](Group& group) {
    const SystemClock clock;
    const auto strategy = make(GossipGraph::kRing, group, clock, kMomentum);
    play(first, 1, *strategy, group);
    strategy->consensus();
    const StrategyState own = strategy->state();
    if (group.rank() == 0) state = own;
    barrier(group);
    play(second, 6, *strategy, group);
    const Vec all = all_of(*strategy, kRanks);
    if (group.rank() == 0) whole = all;
  });
  run_on_memory(kRanks, false, [&](Group& group) {
    const SystemClock clock;
    const auto strategy = make(GossipGraph::kRing, group, clock, kMomentum);
    strategy->load_state(state);
    play(second, 6, *strategy, group);
    const Vec all = all_of(*strategy, kRanks);
    if (group.rank() == 0) resumed = all;
  });
  EXPECT_EQ(state.step, 5);
  ASSERT_EQ(whole.size(), static_cast<size_t>(kRanks * kDim));
  EXPECT_EQ(whole, resumed);
}

TEST(AdPsgd, BuffersAreTheirMeanAtConsensus) {
  const auto found = values_of_processes(2, [](Group& group, Store&) {
    const SystemClock clock;
    const auto strategy = make(GossipGraph::kRing, group, clock, 0);
    for (int64_t step = 1; step <= 3; ++step) make_step(*strategy, group.rank(), step, kLr);
    strategy->consensus();
    return Vec{strategy->evaluated().buffers[0].tensor.item<double>(),
               batch_of(group.rank(), 3).input.mean().item<double>()};
  });
  for (const Vec& rank : found) EXPECT_NEAR(rank[0], (found[0][1] + found[1][1]) / 2, 1e-12);
}

// No rank waits for ever for one that has ended with an error of its own.
TEST(AdPsgd, ARankThatFailsEndsAllOthers) {
  for (const int failing : {0, 1, 2}) {
    const std::string ends = error_of([failing] {
      values_of_processes(4, [failing](Group& group, Store&) {
        const SystemClock clock;
        const auto strategy = make(GossipGraph::kRing, group, clock, 0);
        for (int64_t step = 1; step <= 5; ++step) {
          if (group.rank() == failing && step == 3) throw Error(ErrorCode::kNumeric, "a planted fault");
          make_step(*strategy, group.rank(), step, kLr);
        }
        return mean_of(*strategy);
      });
    });
    for (int rank = 0; rank < 4; ++rank) {
      const std::string own = fmt::format("rank {} ended with 1: ", rank);
      EXPECT_THAT(ends, testing::HasSubstr(own + (rank == failing ? "a planted fault" : "")));
    }
    EXPECT_THAT(ends,
                testing::HasSubstr(fmt::format("rank {} has ended its training with an error", failing)));
  }
}

TEST(AdPsgd, GraphsThatAreNotBipartiteAreRefused) {
  const std::vector<std::pair<const char*, GossipGraph>> graphs = {
      {"ring", GossipGraph::kRing},
      {"torus", GossipGraph::kTorus},
      {"exponential", GossipGraph::kExponential}};
  for (const auto& [name, graph] : graphs) {
    for (int size = 1; size <= 36; ++size) {
      SCOPED_TRACE(std::string(name) + " of " + std::to_string(size));
      const std::string error = error_of([&, graph = graph] { active_ranks_of(graph, size); });
      EXPECT_EQ(error.empty(), is_bipartite(name, size)) << error;
      if (!error.empty()) {
        EXPECT_THAT(error, testing::HasSubstr("use --graph ring and an even number"));
        continue;
      }
      const std::vector<bool> active = active_ranks_of(graph, size);
      EXPECT_TRUE(active[0]);
      for (int r = 0; r < size; ++r) {
        for (const int peer : neighbors_of(graph, r, size).hears) EXPECT_NE(active[r], active[peer]);
      }
    }
  }
}

TEST(AdPsgd, ChoosesEachNeighborEquallyOften) {
  std::vector<int> counts(3, 0);
  constexpr int kDraws = 3000;
  for (int64_t step = 1; step <= kDraws; ++step) ++counts[chosen_neighbor({0, 1, 2}, kSeed, 4, step)];
  for (const int count : counts) EXPECT_NEAR(count, kDraws / 3.0, 100);  // 4 standard deviations
}

}  // namespace
}  // namespace starling
