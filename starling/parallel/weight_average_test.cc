// Averaged weights (optimizer.ema_decay) in fp64. They equal those of one process, whether each rank holds
// them whole or a share of them. evaluated() shows them until the next step. A run that continues from a
// state has the same bits.
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "starling/comm/bootstrap.h"
#include "starling/parallel/all_reduce/all_reduce.h"
#include "starling/parallel/all_reduce/mean_gradient.h"
#include "starling/parallel/compressed_sgd.h"
#include "starling/parallel/gossip.h"
#include "starling/parallel/local_sgd.h"
#include "starling/parallel/one_process_test_training.h"
#include "starling/parallel/pipeline/layer_per_core.h"
#include "starling/parallel/pipeline/pipeline.h"
#include "starling/parallel/replica/averaged_weights.h"
#include "starling/parallel/tensor_parallel.h"
#include "starling/parallel/zero/zero.h"
#include "starling/torch_testing/tensor_difference.h"
#include "starling/torch_testing/torch_group_processes.h"

namespace starling {
namespace {

using Named = std::map<std::string, at::Tensor>;
using Make =
    std::function<std::unique_ptr<Strategy>(const UpdateRule&, at::ScalarType working, Group&, const Clock&)>;

constexpr int kRanks = 3;
constexpr int64_t kBatch = 12;
constexpr int kSteps = 4;
constexpr double kLr = 0.05;

ModelFactory mlp() {
  ModelSpec spec;
  spec.name = "mlp";
  spec.widths = {12, 10, 9, 8, 5};
  return zoo_model(spec, {{12}, 5, false});
}

Batch batch_of(int64_t step) {
  torch::manual_seed(100 + step);
  return {torch::randn({kBatch, 12}, torch::kDouble), torch::randint(5, {kBatch})};
}

OptimizerSpec averaging(const std::string& name) {
  OptimizerSpec spec;
  spec.name = name;
  spec.weight_decay = 0.1;
  spec.exempt_vectors = name != "sgd";
  spec.ema_decay = 0.8;
  return spec;
}

struct Expected {
  Named weights, averages;
};

Expected one_process(const OptimizerSpec& spec, int steps, uint64_t seed = 0) {
  Expected expected;
  expected.weights = train_one_process(mlp(), batch_of, spec, steps,
                                       {.lr = kLr, .seed = seed, .averages = &expected.averages});
  return expected;
}

void train(Strategy& strategy, const Group& group, int first, int last, at::ScalarType type = at::kDouble) {
  const int64_t n = kBatch / group.size();
  for (int64_t step = first; step <= last; ++step) {
    const Batch own = batch_of(step).part(group.rank() * n, n);
    strategy.begin_step({step, kLr, false});
    strategy.forward_backward({own.input.to(type), own.target});
    strategy.update();
  }
}

Named shown(Strategy& strategy) {
  Named result;
  for (const NamedTensor& p : strategy.evaluated().parameters) result[p.name] = p.tensor.detach().clone();
  return result;
}

at::ScalarType master_of(at::ScalarType working) {
  return working == at::kBFloat16 ? at::kFloat : working;
}

Make all_reduce(OptimizerShare share, int threads = 1) {
  return [=](const UpdateRule& rule, at::ScalarType working, Group& group, const Clock& clock) {
    AllReduceOptions options;
    options.master = master_of(working);
    options.working = working;
    options.share = share;
    options.threads = threads;
    options.bucket_bytes = 600;
    return std::make_unique<AllReduce>(mlp(), rule, options, group, clock);
  };
}

FlatReplicaOptions flat(at::ScalarType working, const Group& group) {
  FlatReplicaOptions options;
  options.master = master_of(working);
  options.working = working;
  options.rank = group.rank();
  return options;
}

Make zero(int stage) {
  return [=](const UpdateRule& rule, at::ScalarType working, Group& group, const Clock& clock) {
    const ZeroOptions options{stage, flat(working, group), 600};
    return std::make_unique<Zero>(mlp(), rule, options, group, clock);
  };
}

// Exchanges whose update is that of one process.
std::map<std::string, Make> synchronous() {
  return {{"sharded", all_reduce(OptimizerShare::kSharded)},
          {"replicated", all_reduce(OptimizerShare::kReplicated)},
          {"threads", all_reduce(OptimizerShare::kAuto, 2)},
          {"mean_gradient",
           [](const UpdateRule& rule, at::ScalarType working, Group& group, const Clock& clock) {
             return std::make_unique<MeanGradient>(mlp(), rule, flat(working, group), group, clock);
           }},
          {"zero1", zero(1)},
          {"zero2", zero(2)},
          {"zero3", zero(3)}};
}

void expect_at_most(const Numbers& numbers, size_t count, double bound) {
  EXPECT_EQ(numbers.size(), count);
  for (const auto& [name, value] : numbers) EXPECT_LE(value, bound) << name;
}

TEST(WeightAverage, EqualsThatOfOneProcess) {
  const Numbers all = largest_of(numbers_of_processes(kRanks, [](Group& group, Store&) {
    const SystemClock clock;
    Numbers result;
    for (const char* optimizer : {"sgd", "adamw", "lamb"}) {
      const OptimizerSpec spec = averaging(optimizer);
      const Expected before = one_process(spec, kSteps), after = one_process(spec, kSteps + 1);
      for (const auto& [exchange, make] : synchronous()) {
        // AllReduce has no rates of tensors.
        if (spec.name == "lamb" && exchange != "mean_gradient" && !exchange.starts_with("zero")) continue;
        const auto strategy = make(make_update_rule(spec), at::kDouble, group, clock);
        const std::string name = std::string(optimizer) + "_" + exchange;
        train(*strategy, group, 1, kSteps);
        strategy->consensus();
        result[name + "_trained"] = largest_difference(shown(*strategy), before.weights).difference;
        strategy->show_average();
        result[name + "_shown"] = largest_difference(shown(*strategy), before.averages).difference;
        const StrategyState state = strategy->state();
        if (group.rank() == 0) {
          result[name + "_state"] = largest_difference(state.parameters, before.weights).difference;
          result[name + "_kept"] =
              largest_difference(averaged_weights(state.optimizer), before.averages).difference;
        }
        strategy->consensus();
        result[name + "_back"] = largest_difference(shown(*strategy), before.weights).difference;
        strategy->show_average();
        train(*strategy, group, kSteps + 1, kSteps + 1);
        strategy->consensus();
        result[name + "_next"] = largest_difference(shown(*strategy), after.weights).difference;
        strategy->show_average();
        result[name + "_next_shown"] = largest_difference(shown(*strategy), after.averages).difference;
      }
      const double apart = largest_difference(before.averages, before.weights).difference;
      result[std::string("same_") + optimizer] = apart > 1e-3 ? 0 : 1;
    }
    return result;
  }));
  expect_at_most(all, 7 * (7 + 7 + 4) + 3, 1e-10);
}

// The averages are kept in the type of the master weights.
TEST(WeightAverage, IsShownInTheTypeOfTheModule) {
  const Numbers all = largest_of(numbers_of_processes(2, [](Group& group, Store&) {
    const SystemClock clock;
    Numbers result;
    for (const auto& [name, make] : synchronous()) {
      const auto strategy = make(make_update_rule(averaging("adamw")), at::kBFloat16, group, clock);
      train(*strategy, group, 1, 2, at::kBFloat16);
      strategy->consensus();
      strategy->show_average();
      const Named now = shown(*strategy);
      const StrategyState state = strategy->state();
      double wrong = 0;
      for (const auto& [parameter, average] : averaged_weights(state.optimizer)) {
        const bool right =
            average.scalar_type() == at::kFloat && at::equal(average.to(at::kBFloat16), now.at(parameter));
        wrong += right ? 0 : 1;
      }
      result[name] = wrong;
    }
    return result;
  }));
  expect_at_most(all, 7, 0);
}

// Returns the state of rank 0 on all ranks.
StrategyState shared(Strategy& strategy, Group& group, const std::vector<std::string>& kinds) {
  StrategyState state = strategy.state();
  double step = static_cast<double>(state.step);
  broadcast(group, &step, 1, DataType::kFp64, 0);
  state.step = static_cast<int64_t>(step);
  const auto share = [&](Named& tensors, const std::string& name, const at::Tensor& like) {
    if (group.rank() != 0) tensors[name] = torch::empty(like.sizes(), torch::kDouble);
    broadcast(group, tensors.at(name).data_ptr(), like.numel(), DataType::kFp64, 0);
  };
  for (const NamedTensor& p : strategy.evaluated().parameters) {
    share(state.parameters, p.name, p.tensor);
    for (const std::string& kind : kinds) share(state.optimizer, kind + "/" + p.name, p.tensor);
  }
  return state;
}

TEST(WeightAverage, ContinuesFromAStateBitForBit) {
  const Numbers all = largest_of(numbers_of_processes(kRanks, [](Group& group, Store&) {
    const SystemClock clock;
    const UpdateRule rule = make_update_rule(averaging("adamw"));
    Numbers result;
    for (const auto& [name, make] : synchronous()) {
      std::vector<std::string> kinds;
      for (const std::string& kind : rule.state_names()) {
        if (name != "mean_gradient") kinds.push_back(kind);
        for (int r = 0; r < kRanks && name == "mean_gradient"; ++r)
          kinds.push_back(kind + "@" + std::to_string(r));
      }
      if (name == "mean_gradient") {
        for (int r = 0; r < kRanks; ++r) kinds.push_back("x@" + std::to_string(r));
      }
      // A group serves one strategy at a time.
      auto strategy = make(rule, at::kDouble, group, clock);
      train(*strategy, group, 1, 2 * kSteps);
      const StrategyState a = strategy->state();
      strategy = make(rule, at::kDouble, group, clock);
      train(*strategy, group, 1, kSteps);
      strategy->consensus();
      strategy->show_average();  // what is shown must not reach the state
      const StrategyState half = shared(*strategy, group, kinds);
      strategy = make(rule, at::kDouble, group, clock);
      strategy->load_state(half);
      train(*strategy, group, kSteps + 1, 2 * kSteps);
      const StrategyState b = strategy->state();
      double different = 0;
      for (const auto& [key, tensor] : a.optimizer)
        different += at::equal(tensor, b.optimizer.at(key)) ? 0 : 1;
      for (const auto& [key, tensor] : a.parameters)
        different += at::equal(tensor, b.parameters.at(key)) ? 0 : 1;
      result[name] = different;
    }
    return result;
  }));
  expect_at_most(all, 7, 0);
}

// A matrix x that is drawn to a point, which differs by rank k and step: the gradient is x − c_k(step).
constexpr int64_t kDim = 6;

at::Tensor point(int k, int64_t step) {
  return (torch::arange(kDim, torch::kDouble) * (k + 1) + static_cast<double>(step)).sin();
}

Model drawn() {
  auto module = std::make_shared<torch::nn::Module>();
  const at::Tensor x = module->register_parameter("x", torch::ones({2, kDim / 2}, torch::kDouble));
  Model model;
  model.module = module;
  model.forward = [m = module.get()](const at::Tensor& c) {
    return m->named_parameters()["x"].flatten() - c.flatten();
  };
  model.loss = [](const at::Tensor& y, const at::Tensor&) { return y.square().sum() / 2; };
  return model;
}

// Simulates SGD without momentum on the ranks. `before` and `after` are what the exchange does before and
// after the updates of a step. Returns the average of the mean of the weights after each update.
at::Tensor simulated(const std::function<void(std::vector<at::Tensor>&, int64_t step)>& before,
                     const std::function<void(std::vector<at::Tensor>&, int64_t step)>& after) {
  std::vector<at::Tensor> x(kRanks, torch::ones({kDim}, torch::kDouble));
  at::Tensor average;
  for (int64_t step = 1; step <= 2 * kSteps; ++step) {
    std::vector<at::Tensor> gradients;
    for (int k = 0; k < kRanks; ++k) gradients.push_back(x[k] - point(k, step));
    before(x, step);
    for (int k = 0; k < kRanks; ++k) x[k] = x[k] - kLr * gradients[k];
    const at::Tensor mean = torch::stack(x).mean(0);
    average = step == 1 ? mean : 0.8 * average + 0.2 * mean;
    after(x, step);
  }
  return average;
}

// Local SGD with a plain round, with an outer step, and gossip.
TEST(WeightAverage, IsTheMeanOfTheRanksIfReplicasDiffer) {
  const auto nothing = [](std::vector<at::Tensor>&, int64_t) {};
  const auto round = [](std::vector<at::Tensor>& x, int64_t step) {
    if (step % 3 == 0) x.assign(kRanks, torch::stack(x).mean(0));
  };
  at::Tensor z = torch::ones({kDim}, torch::kDouble);
  const auto outer = [&z](std::vector<at::Tensor>& x, int64_t step) {
    if (step % 3 != 0) return;
    z = z + 0.5 * (torch::stack(x).mean(0) - z);
    x.assign(kRanks, z);
  };
  const auto mix = [](std::vector<at::Tensor>& x, int64_t) { x.assign(kRanks, torch::stack(x).mean(0)); };
  const Named expected = {{"local_sgd", simulated(nothing, round)},
                          {"outer", simulated(nothing, outer)},
                          {"gossip", simulated(mix, nothing)}};  // a ring of three hears everyone
  const Numbers all = largest_of(numbers_of_processes(kRanks, [&](Group& group, Store&) {
    const SystemClock clock;
    OptimizerSpec spec;
    spec.momentum = 0;
    spec.ema_decay = 0.8;
    const UpdateRule rule = make_update_rule(spec);
    const FlatReplicaOptions options = flat(at::kDouble, group);
    std::map<std::string, std::unique_ptr<Strategy>> strategies;
    strategies["local_sgd"] = std::make_unique<LocalSgd>(drawn, rule, options, 3, group, clock);
    strategies["outer"] = std::make_unique<LocalSgd>(drawn, rule, options, 3, group, clock, CodecSpec{},
                                                     OuterStep{.momentum = 0, .lr = 0.5});
    strategies["gossip"] = std::make_unique<Gossip>(drawn, rule, options, GossipGraph::kRing, group, clock);
    Numbers result;
    for (auto& [name, strategy] : strategies) {
      for (int64_t step = 1; step <= 2 * kSteps; ++step) {
        strategy->begin_step({step, kLr, false});
        strategy->forward_backward({point(group.rank(), step).view({1, kDim}), torch::zeros({1})});
        strategy->update();
      }
      strategy->consensus();
      strategy->show_average();
      const at::Tensor x = shown(*strategy).at("x").flatten();
      result[name + "_shown"] = relative_difference(x, expected.at(name));
      const StrategyState state = strategy->state();
      if (group.rank() == 0)
        result[name + "_kept"] =
            relative_difference(averaged_weights(state.optimizer).at("x").flatten(), expected.at(name));
    }
    return result;
  }));
  expect_at_most(all, 6, 1e-10);
}

PipelineOptions stages(int ranks) {
  PipelineOptions options;
  options.schedule = make_schedule("1f1b", ranks, 1, 3);
  options.master = options.working = at::kDouble;
  return options;
}

TEST(WeightAverage, IsShownByStagesAndSlices) {
  const OptimizerSpec spec = averaging("adamw");
  const Numbers all = largest_of(numbers_of_processes(2, [&](Group& group, Store&) {
    const SystemClock clock;
    const UpdateRule rule = make_update_rule(spec);
    const Expected expected = one_process(spec, kSteps);
    Pipeline pipeline(mlp(), rule, stages(2), group, clock);
    const std::unique_ptr<Group> alone = make_single_group();
    TensorParallel slices(mlp(), group, {}, clock, [&](const ModelFactory& part, const ModelParts& parts) {
      AllReduceOptions options;
      options.master = options.working = at::kDouble;
      options.parts = parts;
      return std::make_unique<AllReduce>(part, rule, options, *alone, clock);
    });
    Numbers result;
    for (const auto& [name, strategy] :
         {std::pair<std::string, Strategy*>{"stages", &pipeline}, {"slices", &slices}}) {
      train(*strategy, *alone, 1, kSteps);
      strategy->consensus();
      strategy->show_average();
      // The ranks of a tensor group compute an output together.
      Replica whole = make_replica(mlp(), at::kDouble, 0);
      const at::NoGradGuard no_grad;
      for (NamedTensor& p : whole.parameters) p.tensor.copy_(expected.averages.at(p.name));
      const at::Tensor input = batch_of(9).input;
      result[name + "_output"] = relative_difference(strategy->evaluated().model.forward(input).contiguous(),
                                                     whole.model.forward(input));
      const StrategyState state = strategy->state();
      if (group.rank() == 0)
        result[name + "_kept"] =
            largest_difference(averaged_weights(state.optimizer), expected.averages).difference;
      const at::AutoGradMode grad(true);
      train(*strategy, *alone, kSteps + 1, kSteps + 1);
      const StrategyState next = strategy->state();
      if (group.rank() == 0)
        result[name + "_next"] =
            largest_difference(next.parameters, one_process(spec, kSteps + 1).weights).difference;
    }
    result["stages_shown"] = 1;
    pipeline.consensus();
    pipeline.show_average();
    result["stages_shown"] =
        largest_difference(shown(pipeline), one_process(spec, kSteps + 1).averages).difference;
    return result;
  }));
  expect_at_most(all, 7, 1e-10);
}

TEST(WeightAverage, IsShownByStagesThatAreThreads) {
  const OptimizerSpec spec = averaging("sgd");
  const SystemClock clock;
  const std::unique_ptr<Group> alone = make_single_group();
  LayerPerCore threads(mlp(), make_update_rule(spec), stages(2), clock);
  train(threads, *alone, 1, kSteps);
  threads.consensus();
  threads.show_average();
  EXPECT_LE(largest_difference(shown(threads), one_process(spec, kSteps).averages).difference, 1e-10);
  threads.consensus();
  EXPECT_LE(largest_difference(shown(threads), one_process(spec, kSteps).weights).difference, 1e-10);
}

TEST(AveragedWeights, AreReadFromAState) {
  const at::Tensor a = torch::tensor({0.1, 0.3}), b = torch::tensor({0.3, 0.3});
  StrategyState state;
  state.parameters["x"] = state.parameters["frozen"] = torch::zeros({2});
  state.optimizer = {{"ema@0/x", a}, {"ema@1/x", b}, {"ema@2/x", a}, {"emax/x", b}, {"exp_avg/x", b}};
  const Named averages = averaged_weights(state.optimizer);
  ASSERT_EQ(averages.size(), 1u);
  EXPECT_TRUE(at::allclose(averages.at("x"), torch::tensor({0.5 / 3, 0.3})));
  const StrategyState averaged = with_averaged_weights(state);
  EXPECT_TRUE(at::equal(averaged.parameters.at("x"), averages.at("x")));
  EXPECT_TRUE(at::equal(averaged.parameters.at("frozen"), torch::zeros({2})));
  state.optimizer = {{"ema@0/x", a}, {"ema@1/x", a}, {"ema@2/x", a}};
  EXPECT_TRUE(at::equal(averaged_weights(state.optimizer).at("x"), a));
  EXPECT_TRUE(averaged_weights({{"momentum/x", a}}).empty());
}

// With prune:keep=1 every value is sent, so momentum correction makes the updates of SGD without momentum.
TEST(CompressedSgd, VectorsMayHaveNoWeightDecay) {
  const std::unique_ptr<Group> alone = make_single_group();
  const SystemClock clock;
  OptimizerSpec plain;
  plain.momentum = 0;
  OptimizerSpec decayed = plain;
  decayed.weight_decay = 0.5;
  OptimizerSpec exempt = decayed;
  exempt.exempt_vectors = true;
  const auto run = [&](const OptimizerSpec& spec) {
    CompressedSgd sgd(mlp(), make_update_rule(plain), FlatReplicaOptions{}, parse_codec("prune:keep=1"),
                      CompressedSgd::Correction{0.9, spec.weight_decay, spec.exempt_vectors}, *alone, clock);
    train(sgd, *alone, 1, 2 * kSteps, at::kFloat);
    return sgd.state().parameters;
  };
  for (const OptimizerSpec& spec : {decayed, exempt}) {
    EXPECT_LE(largest_difference(run(spec), one_process(spec, 2 * kSteps).weights).difference, 1e-5);
  }
  EXPECT_GE(largest_difference(run(exempt), one_process(decayed, 2 * kSteps).weights).difference, 1e-3);
}

}  // namespace
}  // namespace starling
