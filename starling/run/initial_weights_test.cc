// Tests how a run takes its initial weights from a file.
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <functional>

#include "starling/base/clock.h"
#include "starling/comm/bootstrap.h"
#include "starling/nn/state.h"
#include "starling/parallel/hybrid.h"
#include "starling/parallel/local_sgd.h"
#include "starling/parallel/tensor_parallel.h"
#include "starling/run/start_values.h"
#include "starling/run/training.h"
#include "starling/testing/temp_dir.h"
#include "starling/torch_testing/torch_group_processes.h"

namespace starling {
namespace {

RunSpec small_mlp_run(const std::string& init) {
  RunSpec spec;
  spec.model.name = "mlp";
  spec.model.widths = {6, 4, 4, 3};
  spec.model.init = init;
  spec.train.precision = Precision::kFp64;
  return spec;
}

SourceInfo six_numbers() {
  SourceInfo info;
  info.input_shape = {6};
  info.classes = 3;
  return info;
}

// Writes a file of fp64 weights that fp32 cannot represent. `add` makes files that differ.
TensorMap write_weights(const std::string& path, double add) {
  const Model model = zoo_factory(small_mlp_run(""), six_numbers())(ModelHooks{})();
  TensorMap weights;
  for (const auto& [name, tensor] : state_of(*model.module))
    weights[name] = tensor.detach().to(at::kDouble) + 1e-12 + add;
  write_safetensors(path, weights);
  return weights;
}

TEST(InitialWeights, OfFp64KeepTheirDigits) {
  const TempDir dir;
  const TensorMap weights = write_weights(dir.file("w.safetensors"), 0);
  const ModelFactory factory =
      zoo_factory(small_mlp_run(dir.file("w.safetensors")), six_numbers())(ModelHooks{});
  const Replica replica = make_replica(factory, at::kDouble, 0);
  ASSERT_EQ(replica.parameters.size(), weights.size());
  for (const NamedTensor& p : replica.parameters)
    EXPECT_TRUE(at::equal(p.tensor, weights.at(p.name))) << p.name;
  // A run of another precision converts.
  RunSpec fp32 = small_mlp_run(dir.file("w.safetensors"));
  fp32.train.precision = Precision::kFp32;
  const Model model = zoo_factory(fp32, six_numbers())(ModelHooks{})();
  for (const auto& p : model.module->named_parameters())
    EXPECT_TRUE(at::equal(p.value(), weights.at(p.key()).to(at::kFloat))) << p.key();
}

using MakeFromFactory = std::function<std::unique_ptr<Strategy>(const ModelFactory&, Group&, const Clock&)>;

FlatReplicaOptions in_fp64() {
  FlatReplicaOptions options;
  options.master = options.working = at::kDouble;
  return options;
}

UpdateRule plain_rule() {
  OptimizerSpec plain;
  plain.momentum = 0;
  return make_update_rule(plain);
}

// Expects that two ranks, whose files differ, begin with the values of rank 0's file.
void expect_values_of_rank_0(const MakeFromFactory& make) {
  const TempDir dir;
  const auto of_ranks = numbers_of_processes(2, [&](Group& group, Store&) {
    const std::string file = dir.file("w" + std::to_string(group.rank()) + ".safetensors");
    write_weights(file, group.rank());
    const ModelFactory from_file = zoo_factory(small_mlp_run(file), six_numbers())(ModelHooks{});
    const StartValues start(from_file, 0, group);
    const SystemClock clock;
    const auto strategy = make(start.in_factory(from_file), group, clock);
    strategy->begin_step({1, 0, false});  // the rate is 0, so the values stay
    strategy->forward_backward({torch::ones({2, 6}, torch::kDouble), torch::zeros({2}, torch::kLong)});
    strategy->update();
    strategy->consensus();
    const StrategyState state = strategy->state();
    if (group.rank() != 0) return Numbers{};
    const TensorMap expected = read_safetensors(dir.file("w0.safetensors")).tensors;
    Numbers equal;
    for (const auto& [name, tensor] : expected)
      equal[name] = at::equal(state.parameters.at(name), tensor) ? 1 : 0;
    return equal;
  });
  EXPECT_EQ(of_ranks[0].size(), 6u);
  for (const auto& [name, value] : of_ranks[0]) EXPECT_EQ(value, 1) << name;
}

TEST(InitialWeights, ThatDifferByRankBecomeThoseOfRankZeroInATensorGroup) {
  const auto alone = make_single_group();
  expect_values_of_rank_0([&](const ModelFactory& factory, Group& group, const Clock& clock) {
    return std::make_unique<TensorParallel>(
        factory, group, std::vector<Group*>{}, clock,
        [&](const ModelFactory& part, const ModelParts& parts) {
          FlatReplicaOptions options = in_fp64();
          options.parts = parts;
          return std::make_unique<LocalSgd>(part, plain_rule(), options, 1, *alone, clock);
        },
        /*hash_every=*/1);
  });
}

TEST(InitialWeights, ThatDifferByRankBecomeThoseOfRankZeroInAHybrid) {
  expect_values_of_rank_0([](const ModelFactory& factory, Group& group, const Clock& clock) {
    return std::make_unique<Hybrid>(factory, plain_rule(), HybridOptions{{"fc2"}, in_fp64()}, group, clock);
  });
}

}  // namespace
}  // namespace starling
