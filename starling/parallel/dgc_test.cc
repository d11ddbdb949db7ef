// Compares synchronous SGD with Deep Gradient Compression (codec/dgc.cc) on real processes with a simulation
// of the paper in plain loops. The simulation has local clipping, momentum correction, factor masking, error
// feedback and the warm-up. center_test_task.h has the task.
#include <gtest/gtest.h>

#include <cmath>

#include "starling/base/clock.h"
#include "starling/codec/codec_reference.h"
#include "starling/comm/bootstrap.h"
#include "starling/parallel/center_test_task.h"
#include "starling/parallel/compressed_sgd.h"
#include "starling/torch_testing/torch_group_processes.h"

namespace starling {
namespace {

constexpr int kDim = kCenterElements, kSteps = 14, kRanks = 3;
constexpr size_t kPadded = kPaddedCenterElements;
constexpr double kLr = 0.05, kMomentum = 0.9, kClip = 4;
// The warm-up has two phases of four steps: 4^-1 and 4^-2 exceed 0.05.
constexpr const char* kWord = "dgc:keep=0.05,warmup=8";

using Vec = std::vector<double>;

float center(int rank, int d) {
  return static_cast<float>(center_of(rank, d));
}

std::unique_ptr<CompressedSgd> make_sgd(const std::string& word, Group& group, const Clock& clock) {
  FlatReplicaOptions options;
  options.rank = group.rank();
  options.clip_norm = kClip;
  OptimizerSpec plain;  // the rule has no momentum of its own
  plain.momentum = 0;
  return std::make_unique<CompressedSgd>(center_model<at::kFloat>, make_update_rule(plain), options,
                                         parse_codec(word), CompressedSgd::Correction{kMomentum, 0}, group,
                                         clock);
}

void run_steps(CompressedSgd& sgd, int rank, int from, int to) {
  train_on_center(sgd, center_batch(at::kFloat, rank), from, to, kLr);
}

// Returns x after kSteps steps, and how many gradients were clipped.
std::pair<Values, int> reference() {
  const Vec start = first_x();
  Values x(start.begin(), start.end());
  std::vector<Values> u(kRanks, Values(kPadded, 0)), r = u;
  int clipped = 0;
  for (int step = 1; step <= kSteps; ++step) {
    const size_t k = step <= 4 ? 18 : step <= 8 ? 5 : 4;  // 25 %, 6.25 % and 5 % of 70 values
    Values sum(kPadded, 0);
    for (int rank = 0; rank < kRanks; ++rank) {
      double squares = 0;
      for (int d = 0; d < kDim; ++d) squares += std::pow(x[d] - center(rank, d), 2.0);
      const double norm = std::sqrt(squares), limit = kClip * std::sqrt(kRanks);
      const auto scale = static_cast<float>(norm > limit ? limit / (norm + 1e-6) : 1);
      clipped += norm > limit ? 1 : 0;
      Values v(kPadded, 0);
      for (int d = 0; d < kDim; ++d) {
        u[rank][d] = static_cast<float>(kMomentum) * u[rank][d] + scale * (x[d] - center(rank, d));
        v[d] = r[rank][d] + u[rank][d];
      }
      const Values sent = prune_reference(v, k);
      for (size_t d = 0; d < kPadded; ++d) {
        r[rank][d] = v[d] - sent[d];
        if (sent[d] != 0) u[rank][d] = 0;
        sum[d] += sent[d];
      }
    }
    for (int d = 0; d < kDim; ++d) x[d] -= static_cast<float>(kLr) * (sum[d] / kRanks);
  }
  return {x, clipped};
}

TEST(Dgc, EqualsThePaperThroughTheWarmUp) {
  const auto of_ranks = values_of_processes(kRanks, [](Group& group, Store&) {
    const SystemClock clock;
    const auto sgd = make_sgd(kWord, group, clock);
    run_steps(*sgd, group.rank(), 1, kSteps);
    return evaluated_x(*sgd);
  });
  const auto [expected, clipped] = reference();
  EXPECT_TRUE(clipped > 0 && clipped < kRanks * kSteps) << clipped;
  for (const Vec& x : of_ranks) {
    EXPECT_EQ(x, of_ranks[0]);
    for (int d = 0; d < kDim; ++d) EXPECT_NEAR(x[d], expected[d], 1e-5) << "number " << d;
  }
}

// A checkpoint has the step of the warm-up, the residual and the velocity. A run that loads it within the
// warm-up continues bit for bit. A run that begins the warm-up again does not.
TEST(Dgc, ARunThatResumesContinuesTheWarmUp) {
  const std::unique_ptr<Group> alone = make_single_group();
  const SystemClock clock;
  for (const char* word : {kWord, "dgc+int8:keep=0.05,warmup=8"}) {
    const auto whole = make_sgd(word, *alone, clock), half = make_sgd(word, *alone, clock);
    const auto rest = make_sgd(word, *alone, clock), anew = make_sgd(word, *alone, clock);
    run_steps(*whole, 0, 1, 9);
    run_steps(*half, 0, 1, 5);
    StrategyState state = half->state();
    EXPECT_EQ(state.optimizer.at("values@0/x").numel(), 2 + 2 * int64_t{kPadded}) << word;
    rest->load_state(state);
    run_steps(*rest, 0, 6, 9);
    EXPECT_TRUE(at::equal(whole->state().parameters.at("x"), rest->state().parameters.at("x"))) << word;
    EXPECT_TRUE(
        at::equal(whole->state().optimizer.at("values@0/x"), rest->state().optimizer.at("values@0/x")))
        << word;
    at::Tensor& values = state.optimizer.at("values@0/x");
    values = values.clone();
    values[0] = 0;  // the step
    anew->load_state(state);
    run_steps(*anew, 0, 6, 9);
    EXPECT_FALSE(at::equal(whole->state().parameters.at("x"), anew->state().parameters.at("x"))) << word;
  }
}

}  // namespace
}  // namespace starling
