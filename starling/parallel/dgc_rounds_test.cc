// Local SGD with codec dgc: a step of the warm-up is a synchronization round. The test
// reads the share of a round from its bytes. f_k(x) = 1/2 |x − c_k|², so the gradient of rank k is x − c_k.
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <cmath>

#include "starling/base/clock.h"
#include "starling/codec/codec_spec.h"
#include "starling/comm/group.h"
#include "starling/parallel/local_sgd.h"
#include "starling/testing/memory_ranks.h"

namespace starling {
namespace {

constexpr int64_t kElements = 400, kStepsPerRound = 2;
constexpr int kRounds = 4;
// 0.01 has three phases. Two rounds reach the first and the second one.
constexpr const char* kWarmUp = "dgc:keep=0.01,warmup=2";

Model far_from_centers() {
  auto module = std::make_shared<torch::nn::Module>();
  Model model;
  module->register_parameter("x", torch::linspace(-1, 1, kElements, torch::kFloat));
  model.module = module;
  model.forward = [m = module.get()](const at::Tensor& a) { return m->named_parameters()["x"] - a; };
  model.loss = [](const at::Tensor& y, const at::Tensor&) { return y.square().sum() / 2; };
  return model;
}

// One rank of a run, and what its rounds have sent.
class Rounds {
 public:
  explicit Rounds(Group& group)
      : rank_(group.rank()),
        strategy_(far_from_centers, make_update_rule(plain()), options_of(group), kStepsPerRound, group,
                  clock_, parse_codec(kWarmUp)) {}

  // Trains to the end of a round. Returns the bytes that a rank sent in it, as the mean over the ranks.
  double run(int round) {
    at::Tensor center = torch::empty({1, kElements}, torch::kFloat);
    for (int64_t d = 0; d < kElements; ++d)
      center[0][d] = std::sin(1.3 * rank_ + 0.7 * static_cast<double>(d));
    for (int64_t step = (round - 1) * kStepsPerRound + 1; step <= round * kStepsPerRound; ++step) {
      strategy_.begin_step({step, 0.05, false});
      strategy_.forward_backward({center, torch::zeros({1}, torch::kFloat)});
      strategy_.update();
    }
    const double before = all_;
    all_ = std::round(++rounds_ * strategy_.strategy_stats().at("message_bytes"));
    return all_ - before;
  }
  StrategyState state() { return strategy_.state(); }
  void load(const StrategyState& state) { strategy_.load_state(state); }

 private:
  static OptimizerSpec plain() {
    OptimizerSpec spec;
    spec.momentum = 0;
    return spec;
  }
  static FlatReplicaOptions options_of(const Group& group) {
    FlatReplicaOptions options;
    options.rank = group.rank();
    return options;
  }

  int rank_;
  SystemClock clock_;
  LocalSgd strategy_;
  double rounds_ = 0, all_ = 0;
};

// The bytes of a round: the length of the message, then k values with their positions. At most
// kElements / 129 distances between two positions need a second byte.
void expect_values(double bytes, int k, int round) {
  EXPECT_GE(bytes, 8 + 5 * k) << "round " << round;
  EXPECT_LE(bytes, 8 + 5 * k + kElements / 129) << "round " << round;
}

// Ranks are threads here, so that they share the state, which is complete on rank 0.
TEST(DgcRounds, AStepOfTheWarmUpIsARoundAlsoAfterAResumption) {
  const std::vector<int> k{100, 25, 4, 4};  // 25 %, 6.25 % and 1 % of 400 values
  std::vector<std::vector<double>> of_ranks(2);
  at::Tensor whole_x, resumed_x;
  StrategyState state;
  run_on_memory(2, false, [&](Group& group) {
    const auto rank = static_cast<size_t>(group.rank());
    Rounds whole(group), half(group), rest(group);
    for (int round = 1; round <= kRounds; ++round) of_ranks[rank].push_back(whole.run(round));
    of_ranks[rank].push_back(half.run(1));
    const StrategyState own = half.state();
    if (rank == 0) state = own;
    barrier(group);
    rest.load(state);
    for (int round = 2; round <= kRounds; ++round) of_ranks[rank].push_back(rest.run(round));
    const StrategyState last = whole.state(), resumed = rest.state();
    if (rank > 0) return;
    whole_x = last.parameters.at("x").clone();
    resumed_x = resumed.parameters.at("x").clone();
  });
  for (const std::vector<double>& values : of_ranks) {
    ASSERT_EQ(values.size(), 2 * k.size());
    for (size_t i = 0; i < values.size(); ++i)
      expect_values(values[i], k[i % k.size()], static_cast<int>(i % k.size()) + 1);
  }
  EXPECT_TRUE(at::equal(whole_x, resumed_x)) << "the resumed run has other weights";
}

}  // namespace
}  // namespace starling
