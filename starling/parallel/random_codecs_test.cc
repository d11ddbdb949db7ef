// Synchronous SGD with the codecs that draw (codec/random_codec.h), on real processes. signsgd is compared
// with a simulation of its equation in plain loops, with 4 and 5 ranks. center_test_task.h has the task.
#include <gtest/gtest.h>

#include "starling/base/clock.h"
#include "starling/base/error.h"
#include "starling/codec/random_reference.h"
#include "starling/comm/bootstrap.h"
#include "starling/parallel/center_test_task.h"
#include "starling/parallel/compressed_sgd.h"
#include "starling/parallel/pipeline/activation_coder.h"
#include "starling/torch_testing/torch_group_processes.h"

namespace starling {
namespace {

constexpr int kDim = kCenterElements, kSteps = 12;
constexpr size_t kPadded = kPaddedCenterElements;
constexpr double kLr = 0.03;
constexpr uint64_t kSeed = 5;

using Vec = std::vector<double>;

std::unique_ptr<CompressedSgd> make_sgd(const std::string& word, Group& group, const Clock& clock) {
  CodecSpec codec = parse_codec(word);
  codec.seed = kSeed;
  FlatReplicaOptions options;
  options.rank = group.rank();
  OptimizerSpec plain;
  plain.momentum = 0;
  return std::make_unique<CompressedSgd>(center_model<at::kFloat>, make_update_rule(plain), options, codec,
                                         group, clock);
}

void run_steps(CompressedSgd& sgd, int rank, int from, int to) {
  train_on_center(sgd, center_batch(at::kFloat, rank), from, to, kLr);
}

// Returns x after kSteps steps of x ← x − lr · sign(Σ_k sign(g_k)).
Vec voted_reference(int ranks) {
  Vec x = first_x();
  const auto p = static_cast<size_t>(ranks);
  for (int step = 1; step <= kSteps; ++step) {
    for (size_t part = 0; part < p; ++part) {
      // Parts meet at multiples of 16 elements.
      const size_t begin = part * (kPadded / 16) / p * 16, end = (part + 1) * (kPadded / 16) / p * 16;
      for (size_t d = begin; d < end && d < kDim; ++d) {
        int sum = 0;
        for (int k = 0; k < ranks; ++k) sum += x[d] > center_of(k, static_cast<int>(d)) ? 1 : -1;
        const KeyReference key{kSeed, static_cast<uint64_t>(step), 2 * p * part + p + part};
        x[d] -= kLr * sign_reference(sum, d - begin, key);
      }
    }
  }
  return x;
}

TEST(SignSgd, MovesByTheVoteOfFourAndOfFiveRanks) {
  for (const int ranks : {4, 5}) {
    const auto of_ranks = values_of_processes(ranks, [](Group& group, Store&) {
      const SystemClock clock;
      const auto sgd = make_sgd("signsgd", group, clock);
      run_steps(*sgd, group.rank(), 1, kSteps);
      return evaluated_x(*sgd);
    });
    const Vec expected = voted_reference(ranks);
    for (const Vec& x : of_ranks) {
      EXPECT_EQ(x, of_ranks[0]);
      for (int d = 0; d < kDim; ++d) EXPECT_NEAR(x[d], expected[d], 1e-5) << ranks << " ranks, number " << d;
    }
  }
}

// A checkpoint has the step of the draws. A run that loads it continues bit for bit.
TEST(RandomCodecs, ARunThatResumesDrawsTheNumbersThatFollow) {
  const std::unique_ptr<Group> alone = make_single_group();
  const SystemClock clock;
  for (const char* word : {"random-k", "qsgd:levels=2", "terngrad", "signsgd"}) {
    const auto whole = make_sgd(word, *alone, clock), half = make_sgd(word, *alone, clock);
    const auto rest = make_sgd(word, *alone, clock), anew = make_sgd(word, *alone, clock);
    run_steps(*whole, 0, 1, 8);
    run_steps(*half, 0, 1, 4);
    StrategyState state = half->state();
    rest->load_state(state);
    run_steps(*rest, 0, 5, 8);
    EXPECT_TRUE(at::equal(whole->state().parameters.at("x"), rest->state().parameters.at("x"))) << word;
    if (std::string(word) == "signsgd") continue;  // draws only where a value is 0
    at::Tensor& values = state.optimizer.at("values@0/x");
    values = values.clone();
    values[0] = 0;  // the step
    anew->load_state(state);
    run_steps(*anew, 0, 5, 8);
    EXPECT_FALSE(at::equal(whole->state().parameters.at("x"), anew->state().parameters.at("x"))) << word;
  }
}

TEST(RandomCodecs, ActivationsRefuseThem) {
  for (const char* word : {"random-k", "qsgd", "terngrad", "signsgd"})
    EXPECT_THROW(ActivationCoder({.word = word}), ConfigError) << word;
}

}  // namespace
}  // namespace starling
