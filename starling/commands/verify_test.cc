#include "starling/commands/verify.h"

#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <cstring>
#include <map>
#include <utility>

#include "starling/base/clock.h"
#include "starling/comm/bootstrap.h"
#include "starling/data/loader.h"
#include "starling/data/tensor_source.h"
#include "starling/run/strategies.h"
#include "starling/testing/run_ranks.h"

namespace starling {
namespace {

class SilentSink final : public EventSink {
 public:
  void emit(const Event&) override {}
};

// Verifies three steps on three ranks. Only rank 1 gets `on_bucket`.
VerifyReport verify_three_ranks(const decltype(AllReduceOptions::on_bucket)& on_bucket, RunSpec spec,
                                const SyncedModelFactory& factory, const DataSets& data) {
  spec.train.precision = Precision::kFp64;
  spec.train.ranks = 3;
  spec.train.global_batch = 12;
  spec.verify.steps = 3;
  const SystemClock clock;
  const std::atomic<bool> stop{false};
  VerifyReport report;
  run_ranks(3, [&](const ThreadRank& self) {
    const int rank = self.rank;
    GroupSetup setup;
    setup.rank = rank;
    setup.size = self.size;
    const auto group = make_group(*self.store, setup);
    SilentSink sink;
    const auto subgroup = [&](const std::string& name, const std::vector<int>& ranks) {
      GroupSetup all = setup;
      all.name = name;
      const GroupSetup some = subset_of(all, name, ranks);
      return some.size == 1 ? make_single_group(some.options) : make_group(*self.store, some);
    };
    const RunEnvironment environment{*group, subgroup, {sink, clock, stop}};
    const VerifyReport own = verify(spec, factory, data, environment, rank == 1 ? on_bucket : nullptr);
    if (rank == 0) report = own;
  });
  return report;
}

// Verifies a small classification on three ranks.
VerifyReport verify_three_ranks(const decltype(AllReduceOptions::on_bucket)& on_bucket) {
  torch::manual_seed(3);
  const at::Tensor x = torch::randn({48, 5}), y = x.sum(1).gt(0).to(torch::kLong);
  const SyncedModelFactory factory = [](const ModelHooks&) -> ModelFactory {
    return [] {
      auto net = std::make_shared<torch::nn::SequentialImpl>(torch::nn::Linear(5, 7), torch::nn::ReLU(),
                                                             torch::nn::Linear(7, 2));
      return Model{net, [net](const at::Tensor& in) { return net->forward(in); }, cross_entropy};
    };
  };
  return verify_three_ranks(on_bucket, {}, factory, {tensor_source(x, y), nullptr});
}

TEST(Verify, PassesForAllReduce) {
  const VerifyReport report = verify_three_ranks({});
  EXPECT_TRUE(report.passed());
  ASSERT_EQ(report.deviations.size(), 4u);
  EXPECT_LT(report.deviations.front().relative, 1e-12);
}

TEST(Verify, OneFlippedBitInOneRanksGradientFails) {
  bool flipped = false;
  const VerifyReport report = verify_three_ranks([&](int64_t step, size_t, void* data, size_t) {
    if (step != 2 || flipped) return;
    flipped = true;
    static_cast<unsigned char*>(data)[6] ^= 0x08;  // the highest bit of the first number's mantissa
  });
  EXPECT_TRUE(flipped);
  EXPECT_FALSE(report.passed());
  EXPECT_EQ(report.deviations.front().step, 2);
}

// Returns a gpt with dropout after the embedding, in attention and after both halves of each block.
RunSpec dropping() {
  RunSpec spec;
  spec.model.name = "gpt";
  spec.model.layers = 2;
  spec.model.width = 16;
  spec.model.heads = 2;
  spec.model.tokens = 6;
  spec.model.dropout = 0.1;
  spec.data.source = "tensors";
  return spec;
}

DataSets tokens() {
  torch::manual_seed(5);
  const at::Tensor text = torch::randint(0, 11, {48, 7}, torch::kLong);
  return {tensor_source(text.narrow(1, 0, 6).contiguous(), text.narrow(1, 1, 6).contiguous()), nullptr};
}

SyncedModelFactory small_gpt(const RunSpec& spec) {
  return [model = spec.model](const ModelHooks& hooks) {
    return zoo_model(model, ModelShape{{6}, 11, true}, hooks);
  };
}

TEST(Verify, DropoutIsThatOfOneProcess) {
  RunSpec replicas = dropping(), stages = dropping(), shards = dropping();
  stages.train.mesh = "stage=3";
  stages.pipeline.micro_batches = 3;
  shards.train.shard = Shard::kParameters;
  for (const RunSpec& spec : {replicas, stages, shards}) {
    const VerifyReport report = verify_three_ranks({}, spec, small_gpt(spec), tokens());
    EXPECT_TRUE(report.passed()) << spec.train.mesh;
    EXPECT_LT(report.deviations.front().relative, 1e-10) << spec.train.mesh;
  }
}

// Returns the weights after `last` steps. One strategy takes the first `cut` steps. Then a new strategy takes
// over its state and continues with the data.
std::map<std::string, at::Tensor> trained(RunSpec spec, int64_t cut, int64_t last) {
  spec.train.global_batch = 8;
  const DataSets data = tokens();
  const SystemClock clock;
  const auto group = make_single_group({});
  StrategyState state;
  for (const auto& [first, end] : {std::pair{int64_t{0}, cut}, std::pair{cut, last}}) {
    AllReduce strategy(small_gpt(spec)({}), make_update_rule(spec.optimizer),
                       all_reduce_options(spec, replica_options(spec, {})), *group, clock);
    if (first > 0) strategy.load_state(state);
    // The state of torch's generator differs, and nothing may depend on it.
    torch::manual_seed(1000 + first);
    const auto loader = make_loader(data.train, loader_options(spec, 0, 1, first));
    for (int64_t step = first + 1; step <= end; ++step) {
      strategy.begin_step({step, 0.05, false});
      strategy.forward_backward(loader->next());
      strategy.update();
    }
    state = strategy.state();
  }
  return state.parameters;
}

TEST(Verify, DropoutOfAResumedRunIsBitIdentical) {
  const auto whole = trained(dropping(), 0, 9), resumed = trained(dropping(), 4, 9);
  for (const auto& [name, tensor] : whole) EXPECT_TRUE(torch::equal(tensor, resumed.at(name))) << name;
  RunSpec without = dropping();
  without.model.dropout = 0;
  EXPECT_FALSE(
      torch::equal(whole.at("transformer.wte.weight"), trained(without, 0, 9).at("transformer.wte.weight")));
}

}  // namespace
}  // namespace starling
