// Stochastic gradient push on four real processes in fp64, compared with a simulation of algorithm 1 of the
// paper in plain loops. center_test_task.h has the task.
#include "starling/parallel/sgp.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "starling/base/clock.h"
#include "starling/base/error.h"
#include "starling/parallel/center_test_task.h"
#include "starling/torch_testing/torch_group_processes.h"

namespace starling {
namespace {

constexpr int kRanks = 4, kDim = kCenterElements;
constexpr double kLr = 0.1, kMomentum = 0.6;

using Vec = std::vector<double>;

// Rank 0 sends to all, and rank 3 to rank 0 only, so out-degrees are 3, 1, 1, 1. In-degrees are unequal, too.
std::vector<int> uneven(int rank, int64_t) {
  if (rank == 0) return {1, 2, 3};
  return {(rank + 1) % kRanks};
}

// The rates of `steps` steps: kLr at first, then `rest`.
double rate_of(int step, double rest) {
  return step <= 5 ? kLr : rest;
}

// Returns z of this rank, then the mean of all x, of each rank.
std::vector<Vec> run_real(const OutNeighbors& out, int steps, double rest) {
  return values_of_processes(kRanks, [&](Group& group, Store&) {
    const SystemClock clock;
    OptimizerSpec spec;
    spec.momentum = kMomentum;
    FlatReplicaOptions options;
    options.master = options.working = at::kDouble;
    options.rank = group.rank();
    Sgp sgp(center_model<at::kDouble>, make_update_rule(spec), options, out, group, clock);
    const Batch batch = center_batch(at::kDouble, group.rank());
    for (int step = 1; step <= steps; ++step) train_on_center(sgp, batch, step, step, rate_of(step, rest));
    Vec found = evaluated_x(sgp);
    sgp.consensus();
    const Vec mean = evaluated_x(sgp);
    found.insert(found.end(), mean.begin(), mean.end());
    return found;
  });
}

struct Simulated {
  std::vector<Vec> x, z;
  Vec w = Vec(kRanks, 1), mean = Vec(kDim, 0);
};

Simulated simulate(const OutNeighbors& out, int steps, double rest) {
  Simulated s;
  s.x.assign(kRanks, first_x());
  s.z = s.x;
  std::vector<Vec> velocity(kRanks, Vec(kDim, 0));
  for (int step = 1; step <= steps; ++step) {
    std::vector<Vec> x(kRanks, Vec(kDim, 0));
    Vec w(kRanks, 0);
    for (int i = 0; i < kRanks; ++i) {
      for (int d = 0; d < kDim; ++d) {
        velocity[i][d] = kMomentum * velocity[i][d] - rate_of(step, rest) * (s.z[i][d] - center_of(i, d));
        s.x[i][d] += velocity[i][d];
      }
      std::vector<int> to = out(i, step - 1);
      to.push_back(i);
      for (const int j : to) {
        w[j] += s.w[i] / static_cast<double>(to.size());
        for (int d = 0; d < kDim; ++d) x[j][d] += s.x[i][d] / static_cast<double>(to.size());
      }
    }
    s.x = x;
    s.w = w;
    for (int i = 0; i < kRanks; ++i) {
      for (int d = 0; d < kDim; ++d) s.z[i][d] = s.x[i][d] / s.w[i];
    }
  }
  for (const Vec& x : s.x) {
    for (int d = 0; d < kDim; ++d) s.mean[d] += x[d] / kRanks;
  }
  return s;
}

double difference(const double* a, const Vec& b) {
  double largest = 0;
  for (size_t d = 0; d < b.size(); ++d) largest = std::max(largest, std::abs(a[d] - b[d]));
  return largest;
}

TEST(Sgp, FollowsItsEquationsOnEveryGraph) {
  for (const char* graph : {"ring", "torus", "exponential", "one-peer", "uneven"}) {
    const OutNeighbors out =
        graph == std::string("uneven") ? OutNeighbors(uneven) : out_neighbors_of(graph, kRanks);
    const auto real = run_real(out, 20, kLr);
    const Simulated simulated = simulate(out, 20, kLr);
    for (int i = 0; i < kRanks; ++i) {
      EXPECT_LE(difference(real[i].data(), simulated.z[i]), 1e-12) << graph << " rank " << i;
      EXPECT_LE(difference(real[i].data() + kDim, simulated.mean), 1e-12) << graph << " rank " << i;
    }
  }
}

// Resumes on a graph whose weights w are not 1: a checkpoint has x, z and w of every rank.
TEST(Sgp, ACheckpointKeepsTheWeights) {
  const auto real = values_of_processes(kRanks, [&](Group& group, Store&) {
    const SystemClock clock;
    OptimizerSpec spec;
    spec.momentum = kMomentum;
    FlatReplicaOptions options;
    options.master = options.working = at::kDouble;
    options.rank = group.rank();
    const Batch batch = center_batch(at::kDouble, group.rank());
    StrategyState state;
    {
      Sgp sgp(center_model<at::kDouble>, make_update_rule(spec), options, uneven, group, clock);
      train_on_center(sgp, batch, 1, 7, kLr);
      state = sgp.state();
    }
    // Rank 0 has the complete state. It sends all ranks what it has of each.
    state.parameters["x"] = torch::zeros({kDim}, torch::kDouble);
    for (int rank = 0; rank < kRanks; ++rank) {
      for (const char* kind : {"x", "sum", "momentum", "values"}) {
        at::Tensor& kept = state.optimizer[fmt::format("{}@{}/x", kind, rank)];
        const bool values = kind == std::string("values");
        if (group.rank() != 0)
          kept = torch::empty({values ? 3 : kDim}, values ? torch::kFloat : torch::kDouble);
        broadcast(group, kept.data_ptr(), kept.numel(), values ? DataType::kFp32 : DataType::kFp64, 0);
      }
    }
    Sgp resumed(center_model<at::kDouble>, make_update_rule(spec), options, uneven, group, clock);
    resumed.load_state(state);
    train_on_center(resumed, batch, 8, 20, kLr);
    Vec found = evaluated_x(resumed);
    for (auto& [name, tensor] : state.optimizer)
      if (name.starts_with("values@")) tensor = torch::ones({1});
    try {
      resumed.load_state(state);
    } catch (const Error& e) {
      found.push_back(e.code() == ErrorCode::kCheckpoint ? 1 : 0);
    }
    return found;
  });
  const Simulated simulated = simulate(uneven, 20, kLr);
  for (int i = 0; i < kRanks; ++i) {
    EXPECT_LE(difference(real[i].data(), simulated.z[i]), 1e-12) << "rank " << i;
    ASSERT_EQ(real[i].size(), static_cast<size_t>(kDim + 1)) << "values of a wrong length were accepted";
    EXPECT_EQ(real[i].back(), 1);
  }
}

// One rank sends to nobody, so its fp32 parameters are those of SGD, bit for bit.
TEST(Sgp, OneRankIsSgdInFp32) {
  const auto real = values_of_processes(1, [&](Group& group, Store&) {
    const SystemClock clock;
    const OptimizerSpec spec;
    FlatReplicaOptions options;
    Sgp sgp(center_model<at::kDouble>, make_update_rule(spec), options, out_neighbors_of("one-peer", 1),
            group, clock);
    FlatReplica alone(center_model<at::kDouble>, make_update_rule(spec), options);
    const Batch batch = center_batch(at::kFloat, 0);
    for (int step = 1; step <= 50; ++step) {
      train_on_center(sgp, batch, step, step, 0.01);
      alone.forward_backward(batch, step);
      alone.update({step, 0.01, false});
    }
    const at::Tensor found = sgp.evaluated().parameters[0].tensor.flatten();
    return Vec{at::equal(found, alone.parameters().narrow(0, 0, kDim)) ? 1.0 : 0.0};
  });
  EXPECT_EQ(real[0][0], 1.0);
}

// With gradients off, the weights lead every rank to the mean. The sums x_i alone miss it.
TEST(Sgp, FindsTheMeanWhereOutDegreesAreUnequal) {
  constexpr int kSteps = 150;  // momentum has decayed, too
  const auto real = run_real(uneven, kSteps, 0);
  const Simulated simulated = simulate(uneven, kSteps, 0);
  for (int i = 0; i < kRanks; ++i) {
    EXPECT_LE(difference(real[i].data(), simulated.mean), 1e-12) << "rank " << i;
    // The weights approach 1, 1/2, 1 and 3/2.
    if (i % 2 == 0) continue;
    EXPECT_GE(difference(simulated.x[i].data(), simulated.mean), 1e-2) << "rank " << i;
  }
}

// If p is a power of two, log2 p rounds of the one-peer graph make the exact mean. One step takes the ranks
// apart. Its round counts as the first one, because it comes after the update.
TEST(Sgp, OnePeerIsExactAfterLog2Rounds) {
  for (const auto& [ranks, rounds] : {std::pair(2, 1), std::pair(4, 2), std::pair(8, 3)}) {
    const auto real = values_of_processes(ranks, [rounds = rounds](Group& group, Store&) {
      const SystemClock clock;
      OptimizerSpec spec;
      spec.momentum = 0;
      FlatReplicaOptions options;
      options.master = options.working = at::kDouble;
      options.rank = group.rank();
      Sgp sgp(center_model<at::kDouble>, make_update_rule(spec), options,
              out_neighbors_of("one-peer", group.size()), group, clock);
      const Batch batch = center_batch(at::kDouble, group.rank());
      Vec found;
      for (int step = 1; step <= rounds; ++step) {
        train_on_center(sgp, batch, step, step, step == 1 ? kLr : 0);
        const Vec x = evaluated_x(sgp);
        found.insert(found.end(), x.begin(), x.end());
      }
      return found;
    });
    Vec mean(kDim, 0);
    for (int i = 0; i < ranks; ++i) {
      for (int d = 0; d < kDim; ++d)
        mean[d] += (first_x()[d] - kLr * (first_x()[d] - center_of(i, d))) / ranks;
    }
    for (int i = 0; i < ranks; ++i) {
      EXPECT_LE(difference(real[i].data() + (rounds - 1) * kDim, mean), 1e-12)
          << ranks << " ranks, rank " << i;
      if (rounds > 1) {
        EXPECT_GE(difference(real[i].data() + (rounds - 2) * kDim, mean), 1e-3)
            << ranks << " ranks, rank " << i;
      }
    }
  }
}

// The same in plain loops, on the graph alone.
TEST(Sgp, OnePeerIsExactAfterTwoRoundsOfFourRanks) {
  const OutNeighbors out = out_neighbors_of("one-peer", kRanks);
  Simulated s;
  for (int i = 0; i < kRanks; ++i) s.x.push_back({static_cast<double>(1 << i)});
  for (int64_t round = 0; round < 2; ++round) {
    std::vector<Vec> next(kRanks, Vec(1, 0));
    for (int i = 0; i < kRanks; ++i) {
      ASSERT_EQ(out(i, round).size(), 1u);
      next[i][0] += s.x[i][0] / 2;
      next[out(i, round)[0]][0] += s.x[i][0] / 2;
    }
    s.x = next;
  }
  for (const Vec& x : s.x) EXPECT_EQ(x[0], 15 / 4.0);
}

}  // namespace
}  // namespace starling
