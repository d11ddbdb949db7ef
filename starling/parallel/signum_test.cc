// SIGNUM with majority vote: the codec signsgd with the momentum before the vote. The strategy that a
// configuration makes is compared, on real processes, with a simulation of the paper in plain loops
// (Bernstein, Zhao, Azizzadenesheli, Anandkumar, ICLR 2019, algorithm 1). center_test_task.h has the task.
#include <gtest/gtest.h>

#include <cmath>

#include "starling/base/clock.h"
#include "starling/codec/random_reference.h"
#include "starling/comm/bootstrap.h"
#include "starling/parallel/center_test_task.h"
#include "starling/parallel/compressed_sgd.h"
#include "starling/parallel/exchange_makers.h"
#include "starling/torch_testing/torch_group_processes.h"

namespace starling {
namespace {

constexpr int kDim = kCenterElements, kSteps = 12;
constexpr size_t kPadded = kPaddedCenterElements;
constexpr double kLr = 0.1, kMomentum = 0.9, kDecay = 0.2, kClip = 3;
constexpr uint64_t kSeed = 5;

using Vec = std::vector<double>;

RunSpec spec_with(const std::string& word) {
  RunSpec spec;
  spec.exchange.codec = word;
  spec.optimizer.momentum = kMomentum;
  spec.optimizer.weight_decay = kDecay;
  spec.train.seed = kSeed;
  return spec;
}

std::unique_ptr<Strategy> make_strategy(const RunSpec& spec, Group& group, const Clock& clock,
                                        double clip_norm = 0) {
  FlatReplicaOptions replica;
  replica.rank = group.rank();
  replica.clip_norm = clip_norm;
  return make_exchange({spec, center_model<at::kFloat>, group, clock, replica});
}

// Trains on real processes. Returns x of each rank.
std::vector<Vec> trained(const RunSpec& spec, int ranks, double clip_norm = 0) {
  return values_of_processes(ranks, [&](Group& group, Store&) {
    const SystemClock clock;
    const auto strategy = make_strategy(spec, group, clock, clip_norm);
    train_on_center(*strategy, center_batch(at::kFloat, group.rank()), 1, kSteps, kLr);
    return evaluated_x(*strategy);
  });
}

// The settings of the simulation.
struct Algorithm {
  double before = kMomentum;  // beta of each rank's velocity
  double behind = 0;          // momentum of an update rule behind the vote
  double decay = kDecay;
  double clip = 0;  // the limit of a rank's gradient is √p times this; 0: none
};

// Returns the vote on element `d` of the ranks' velocities. The owner of a part draws the sign of a tie.
double vote_on(const std::vector<Vec>& velocity, int d, int step) {
  const size_t p = velocity.size(), at = static_cast<size_t>(d);
  int sum = 0;
  for (const Vec& v : velocity) sum += v[at] > 0 ? 1 : -1;
  size_t part = 0;
  const auto begin = [&](size_t i) { return i * (kPadded / 16) / p * 16; };
  while (begin(part + 1) <= at) ++part;
  return sign_reference(sum, at - begin(part), {kSeed, static_cast<uint64_t>(step), 2 * p * part + p + part});
}

// Returns x after kSteps steps of
//   v_k ← β v_k + (1 − β) clip(g_k),   x ← x − lr (vote of all sign(v_k) + λ x).
Vec signum_reference(int ranks, const Algorithm& algorithm = {}) {
  Vec x = first_x(), moved(kDim, 0);
  std::vector<Vec> velocity(static_cast<size_t>(ranks), Vec(kDim, 0));
  for (int step = 1; step <= kSteps; ++step) {
    for (int k = 0; k < ranks; ++k) {
      double squares = 0;
      for (int d = 0; d < kDim; ++d) squares += std::pow(x[d] - center_of(k, d), 2.0);
      const double limit = algorithm.clip * std::sqrt(ranks), norm = std::sqrt(squares);
      const double scale = algorithm.clip > 0 && norm > limit ? limit / (norm + 1e-6) : 1;
      for (int d = 0; d < kDim; ++d) {
        double& v = velocity[k][d];
        v = algorithm.before * v + (1 - algorithm.before) * scale * (x[d] - center_of(k, d));
      }
    }
    for (int d = 0; d < kDim; ++d) {
      moved[d] = algorithm.behind * moved[d] + vote_on(velocity, d, step) + algorithm.decay * x[d];
      x[d] -= kLr * moved[d];
    }
  }
  return x;
}

double distance(const Vec& a, const Vec& b) {
  double largest = 0;
  for (int d = 0; d < kDim; ++d) largest = std::max(largest, std::fabs(a[d] - b[d]));
  return largest;
}

// Four ranks can tie, and five cannot.
TEST(Signum, EqualsThePaperOnFourAndOnFiveRanks) {
  for (const int ranks : {4, 5}) {
    const Vec expected = signum_reference(ranks);
    for (const Vec& x : trained(spec_with("signsgd"), ranks)) EXPECT_LE(distance(x, expected), 1e-5) << ranks;
    EXPECT_GE(distance(expected, signum_reference(ranks, {.before = 0})), 0.1) << ranks;
  }
}

// Each rank clips its own gradient, to √p times the limit.
TEST(Signum, ClipsBeforeTheVelocity) {
  for (const int ranks : {4, 5}) {
    const Vec expected = signum_reference(ranks, {.clip = kClip});
    for (const Vec& x : trained(spec_with("signsgd"), ranks, kClip))
      EXPECT_LE(distance(x, expected), 1e-5) << ranks;
    EXPECT_GE(distance(expected, signum_reference(ranks)), 0.1) << ranks;
  }
}

// Without the correction, the velocity of the update rule adds votes. Without a momentum, both settings of
// the correction are the same.
TEST(Signum, WithoutCorrectionTheMomentumIsBehindTheVote) {
  const Vec expected = signum_reference(4, {.before = 0, .behind = kMomentum});
  for (const Vec& x : trained(spec_with("signsgd:correction=off"), 4)) EXPECT_LE(distance(x, expected), 1e-5);
  RunSpec on = spec_with("signsgd"), off = spec_with("signsgd:correction=off");
  on.optimizer.momentum = off.optimizer.momentum = 0;
  EXPECT_EQ(trained(on, 4), trained(off, 4));
}

// x is a vector, so it does not decay.
TEST(Signum, LeavesTheDecayToTheUpdateRule) {
  RunSpec spec = spec_with("signsgd");
  spec.optimizer.exempt_vectors = true;
  const CompressedSgd::Correction correction = correction_of(spec, codec_of(spec));
  EXPECT_EQ(correction.momentum, kMomentum);
  EXPECT_EQ(correction.weight_decay, 0);
  EXPECT_LE(distance(trained(spec, 1)[0], signum_reference(1, {.decay = 0})), 1e-5);
  spec.optimizer.name = "adam";
  EXPECT_EQ(correction_of(spec, codec_of(spec)).momentum, 0);
}

// A checkpoint has the step of the draws and the velocity. A run that loads it continues bit for bit. A
// checkpoint of an earlier version has no velocity, which then begins with zeros.
TEST(Signum, ARunThatResumesKeepsTheVelocity) {
  const std::unique_ptr<Group> alone = make_single_group();
  const SystemClock clock;
  const RunSpec spec = spec_with("signsgd");
  const auto run = [](Strategy& strategy, int first, int last) {
    train_on_center(strategy, center_batch(at::kFloat, 0), first, last, kLr);
  };
  const auto whole = make_strategy(spec, *alone, clock), half = make_strategy(spec, *alone, clock);
  const auto rest = make_strategy(spec, *alone, clock), anew = make_strategy(spec, *alone, clock);
  run(*whole, 1, 2 * kSteps);
  run(*half, 1, kSteps);
  StrategyState state = half->state();
  at::Tensor& values = state.optimizer.at("values@0/x");
  EXPECT_EQ(values.numel(), 2 + int64_t{kPadded});
  rest->load_state(state);
  run(*rest, kSteps + 1, 2 * kSteps);
  const StrategyState expected = whole->state(), resumed = rest->state();
  EXPECT_TRUE(at::equal(expected.parameters.at("x"), resumed.parameters.at("x")));
  EXPECT_TRUE(at::equal(expected.optimizer.at("values@0/x"), resumed.optimizer.at("values@0/x")));
  values = values.narrow(0, 0, 2).clone();
  anew->load_state(state);
  run(*anew, kSteps + 1, 2 * kSteps);
  EXPECT_FALSE(at::equal(expected.parameters.at("x"), anew->state().parameters.at("x")));
}

}  // namespace
}  // namespace starling
