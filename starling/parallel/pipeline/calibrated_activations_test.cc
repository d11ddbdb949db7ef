// Pipelines with pipeline.activations = "calibrated-int8" train as one process that quantizes the tensors at
// the cuts by the definition.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "starling/parallel/all_reduce/all_reduce.h"
#include "starling/parallel/pipeline/layer_per_core.h"
#include "starling/parallel/pipeline/pipeline_test_task.h"
#include "starling/plan/schedule_text.h"
#include "starling/spec/run_spec.h"
#include "starling/testing/run_ranks.h"

namespace starling {
namespace {

using testing::HasSubstr;

// What the definition says of the steps so far. Sizes are summed over all cuts and both directions.
struct Definition {
  int64_t steps = 2, every = 0;  // as in CalibrationOptions
  double limit = 100, percentile = 100;
  std::vector<size_t> cut = {};
  int64_t micro_batches = 4;

  int64_t step = 0;
  int64_t bytes = 0;  // of the last step
  int64_t ranged = 0, saturated = 0, restarts = 0;
  int64_t since = 0;  // steps since the present calibration began
  // By cut, direction and place of the tensor: the range in use, and the one that is being recorded.
  std::map<std::tuple<size_t, bool, size_t>, std::pair<float, float>> ranges = {};

  // By cut, direction and place: the values of the last step that were sent with a range, and those beyond
  // it.
  std::map<std::tuple<size_t, bool, size_t>, std::pair<double, double>> counts = {};

  void begin_step() {
    ++step;
    ++since;
    bytes = 0;
    bool exceeded = false;
    for (const auto& [of, count] : counts)
      exceeded = exceeded || count.second / count.first > (100 - percentile + limit) / 100;
    restarts += exceeded ? 1 : 0;
    counts.clear();
    if (exceeded || (every > 0 && (step - 1) % every == 0)) since = 1;
    for (auto& [of, range] : ranges) {
      if (since == 1) range.second = 0;
    }
  }

  // Returns the magnitude below which `percentile` percent of the values are.
  float range_of(const std::vector<float>& values) const {
    std::vector<float> magnitudes;
    for (const float v : values) magnitudes.push_back(std::fabs(v));
    std::sort(magnitudes.begin(), magnitudes.end());
    const double count = static_cast<double>(magnitudes.size());
    return magnitudes[static_cast<size_t>(std::ceil(percentile / 100 * count)) - 1];
  }

  // Returns what arrives behind the cut if `x` is sent.
  at::Tensor sent(const at::Tensor& x, size_t block, bool gradient, size_t index) {
    if (!x.is_floating_point()) {
      bytes += static_cast<int64_t>(x.nbytes());
      return x.detach();
    }
    const at::Tensor flat = x.detach().to(at::kFloat).contiguous();
    std::vector<float> values(flat.const_data_ptr<float>(), flat.const_data_ptr<float>() + flat.numel());
    auto& [range, recorded] = ranges[{block, gradient, index}];
    if (since <= steps) {
      bytes += static_cast<int64_t>(x.nbytes());
      recorded = std::max(recorded, range_of(values));
      return x.detach().clone();
    }
    bytes += x.numel();
    ranged += x.numel();
    auto& [sent_values, beyond] = counts[{block, gradient, index}];
    sent_values += static_cast<double>(x.numel());
    for (float& v : values) {
      saturated += std::fabs(v) > range ? 1 : 0;
      beyond += std::fabs(v) > range ? 1 : 0;
      const float scaled = std::clamp(v * (127.0f / range), -127.0f, 127.0f);
      v = range / 127.0f * static_cast<float>(std::lrint(scaled));
    }
    return at::tensor(values).view(x.sizes()).to(x.scalar_type());
  }

  // Leaves the gradient of the batch's mean loss in the parameters.
  void train(const Model& model, const at::Tensor& input, const at::Tensor& target) {
    begin_step();
    const int64_t each = input.size(0) / micro_batches;
    for (int64_t m = 0; m < micro_batches; ++m) {
      std::vector<Tensors> outputs, inputs;
      Tensors arrived = {input.narrow(0, m * each, each)};
      for (size_t s = 0; s + 1 < cut.size(); ++s) {
        inputs.push_back(arrived);
        outputs.push_back(run_blocks(model.blocks, cut[s], cut[s + 1], arrived));
        if (s + 2 == cut.size()) break;
        arrived.clear();
        for (size_t i = 0; i < outputs[s].size(); ++i) {
          const at::Tensor& x = outputs[s][i];
          arrived.push_back(sent(x, cut[s + 1], false, i).requires_grad_(x.requires_grad()));
        }
      }
      model.loss(outputs.back()[0], target.narrow(0, m * each, each)).backward();
      for (size_t s = outputs.size() - 1; s > 0; --s) {
        for (size_t i = 0; i < inputs[s].size(); ++i) {
          const at::Tensor& x = inputs[s][i];
          if (!x.requires_grad()) continue;
          const at::Tensor gradient = x.grad().defined() ? x.grad() : at::zeros_like(x);
          outputs[s - 1][i].backward(sent(gradient, cut[s], true, i), /*retain_graph=*/true);
        }
      }
    }
    for (auto& [of, range] : ranges) {
      if (since == steps) range.first = range.second;
    }
    for (at::Tensor& p : model.module->parameters()) p.mutable_grad().div_(micro_batches);
  }
};

// A user's model. Two tensors with gradients, one without, and one of integers pass every cut.
struct WideCutNet : torch::nn::Module {
  WideCutNet() {
    for (int i = 0; i < 7; ++i)
      layers.push_back(register_module(fmt::format("layer{}", i), torch::nn::Linear(12, 12)));
    head = register_module("head", torch::nn::Linear(12, 5));
  }
  std::vector<torch::nn::Linear> layers;
  torch::nn::Linear head{nullptr};
};

Model wide_cut_model() {
  const auto net = std::make_shared<WideCutNet>();
  std::vector<Block> blocks;
  blocks.push_back(
      {"layer0", {net->layers[0].ptr()}, [l = net->layers[0]](const Tensors& x) mutable -> Tensors {
         const at::Tensor flat = x[0].flatten(1);
         const at::Tensor h = l(flat).tanh();
         return {h, h * 2, (flat * 3).detach(), (flat > 0).to(at::kLong)};
       }});
  for (int i = 1; i < 7; ++i) {
    blocks.push_back({fmt::format("layer{}", i),
                      {net->layers[i].ptr()},
                      [l = net->layers[i]](const Tensors& x) mutable -> Tensors {
                        return {(l(x[0]) + x[2] * 0.1 + x[3] * 0.2).tanh(), x[1], x[2], x[3]};
                      }});
  }
  blocks.push_back({"head", {net->head.ptr()}, [l = net->head](const Tensors& x) mutable -> Tensors {
                      return {l(x[0] + x[1])};
                    }});
  return {net, [blocks](const at::Tensor& x) { return run_blocks(blocks, 0, blocks.size(), {x})[0]; },
          cross_entropy, blocks};
}

Task wide_cut_task() {
  Task task = mlp_task();
  task.factory = wide_cut_model;
  return task;
}

// All tasks here have eight blocks.
std::vector<size_t> equal_cut(int stages) {
  std::vector<size_t> cut;
  for (int s = 0; s <= stages; ++s) cut.push_back(static_cast<size_t>(8 * s / stages));
  return cut;
}

PipelineOptions calibrated(const Schedule& schedule, const Definition& definition) {
  PipelineOptions options;
  options.schedule = schedule;
  options.master = options.working = at::kDouble;
  options.seed = 3;
  options.cut = definition.cut;
  options.activations = {kCalibratedInt8,
                         {definition.steps, definition.every, definition.limit, definition.percentile}};
  return options;
}

void one_step(Strategy& strategy, const Task& task, int64_t step) {
  strategy.begin_step({step, 0.05, false});
  strategy.forward_backward(task.batch(step));
  strategy.update();
}

// What a comparison has seen.
struct Seen {
  double saturated_share = 0;  // of the values that were sent with a range
  int64_t restarts = 0;        // calibrations after too many values were beyond a range
};

// Compares parameters, bytes and counts after some steps.
Seen compare(const Task& task, const Schedule& schedule, Definition definition, int steps) {
  definition.cut = equal_cut(schedule.stages());
  definition.micro_batches = schedule.micro_batches;
  const SystemClock clock;
  LayerPerCore threads(task.factory, make_update_rule(optimizer("sgd")), calibrated(schedule, definition),
                       clock);
  std::vector<double> bytes;
  for (int64_t step = 1; step <= steps; ++step) {
    one_step(threads, task, step);
    bytes.push_back(threads.strategy_stats().at("stage_bytes"));
  }
  at::set_num_threads(1);
  std::vector<double> want;
  const Backward by_definition = [&](const Model& model, const at::Tensor& input, const at::Tensor& target) {
    definition.train(model, input, target);
    want.push_back(static_cast<double>(definition.bytes));
  };
  const std::string what = fmt::format("{} v={}", schedule.name, schedule.chunks);
  const StrategyState state = threads.state();
  require_equal(task, state, one_process(task, optimizer("sgd"), steps, 0, by_definition), 1e-10, what);
  EXPECT_EQ(bytes, want) << what;
  StrategyStats stats = threads.strategy_stats();
  EXPECT_EQ(stats.at("ranged_values"), static_cast<double>(definition.ranged)) << what;
  EXPECT_EQ(stats.at("saturated_values"), static_cast<double>(definition.saturated)) << what;
  for (const auto& [of, range] : definition.ranges) {
    const auto [block, gradient, index] = of;
    const std::string name =
        fmt::format("range@0/cut{}.{}{}", block, gradient ? "gradient" : "activation", index);
    EXPECT_EQ(state.optimizer.at(name)[0].item<double>(), range.first) << what << ' ' << name;
  }
  return {stats.at("saturated_values") / stats.at("ranged_values"), definition.restarts};
}

TEST(CalibratedActivations, EveryScheduleEqualsOneProcess) {
  for (const char* name : {"naive", "gpipe", "1f1b"})
    compare(mlp_task(), make_schedule(name, 3, 1, 4), {}, 5);
  compare(mlp_task(), make_schedule("interleaved", 2, 3, 4), {}, 5);
  compare(gpt_task(), make_schedule("1f1b", 4, 1, 8), {}, 4);
  compare(gpt_task(), make_schedule("interleaved", 2, 2, 4), {}, 4);
  // The second micro-batch goes first in one direction, and rank 1 receives in another order than rank 0
  // sends.
  const Schedule own = parse_schedule(
      "ranks 2 micro-batches 2\nrank 0: F1 SA1 F0 SA0 RG0 B0 RG1 B1\nrank 1: RA0 F0 B0 SG0 RA1 F1 B1 SG1\n",
      "own");
  compare(mlp_task(), own, {.steps = 1}, 3);
}

TEST(CalibratedActivations, SeveralTensorsPassEveryCut) {
  const Task task = wide_cut_task();
  for (const char* name : {"naive", "gpipe", "1f1b"}) compare(task, make_schedule(name, 3, 1, 4), {}, 5);
  compare(task, make_schedule("interleaved", 2, 2, 4), {.steps = 1}, 4);
}

TEST(CalibratedActivations, ValuesBeyondTheRangeSaturateAndAreCounted) {
  const Schedule schedule = make_schedule("1f1b", 2, 1, 4);
  const Seen few = compare(mlp_task(), schedule, {.steps = 1}, 5);
  EXPECT_GT(few.saturated_share, 0);
  EXPECT_LT(few.saturated_share, 0.1);
  const Seen many = compare(mlp_task(), schedule, {.steps = 1, .percentile = 90}, 5);
  EXPECT_GT(many.saturated_share, few.saturated_share);
  EXPECT_EQ(few.restarts + many.restarts, 0);
}

TEST(CalibratedActivations, TooManyValuesBeyondTheRangeStartACalibration) {
  EXPECT_GT(compare(mlp_task(), make_schedule("1f1b", 3, 1, 4), {.steps = 1, .limit = 0.5}, 8).restarts, 1);
  EXPECT_GT(compare(wide_cut_task(), make_schedule("interleaved", 2, 2, 4), {.limit = 0.2}, 8).restarts, 0);
  EXPECT_GT(
      compare(mlp_task(), make_schedule("gpipe", 2, 1, 4), {.steps = 1, .limit = 0.1, .percentile = 99.5}, 8)
          .restarts,
      0);
}

TEST(CalibratedActivations, CalibrationsAreRepeated) {
  compare(mlp_task(), make_schedule("1f1b", 2, 1, 4), {.steps = 1, .every = 3}, 8);
  compare(wide_cut_task(), make_schedule("interleaved", 2, 2, 4), {.steps = 2, .every = 3}, 7);
}

TEST(CalibratedActivations, ARunResumedAtAnyStepHasTheSameBits) {
  const Task task = wide_cut_task();
  const SystemClock clock;
  Definition definition{.steps = 2, .every = 5, .limit = 0.5};
  const Schedule schedule = make_schedule("interleaved", 2, 2, 4);
  definition.cut = equal_cut(4);
  const PipelineOptions options = calibrated(schedule, definition);
  const UpdateRule rule = make_update_rule(optimizer("sgd"));
  constexpr int64_t kLast = 9;
  std::vector<StrategyState> kept;
  LayerPerCore whole(task.factory, rule, options, clock);
  for (int64_t step = 1; step <= kLast; ++step) {
    one_step(whole, task, step);
    kept.push_back(whole.state());
  }
  for (int64_t begin = 1; begin < kLast; ++begin) {
    LayerPerCore resumed(task.factory, rule, options, clock);
    resumed.load_state(kept[begin - 1]);
    for (int64_t step = begin + 1; step <= kLast; ++step) one_step(resumed, task, step);
    const StrategyState state = resumed.state();
    for (const auto& [name, tensor] : kept.back().parameters)
      EXPECT_TRUE(at::equal(tensor, state.parameters.at(name))) << begin << ' ' << name;
    for (const auto& [name, tensor] : kept.back().optimizer)
      EXPECT_TRUE(at::equal(tensor, state.optimizer.at(name))) << begin << ' ' << name;
  }
  // Without its ranges a run would train on other values.
  StrategyState without = kept[1];
  EXPECT_GT(
      std::erase_if(without.optimizer, [](const auto& item) { return item.first.starts_with("range@"); }),
      0u);
  LayerPerCore other(task.factory, rule, options, clock);
  other.load_state(without);
  for (int64_t step = 3; step <= kLast; ++step) one_step(other, task, step);
  EXPECT_FALSE(at::equal(kept.back().parameters.begin()->second, other.state().parameters.begin()->second));
}

// One rank of two replicas with two stages, as a thread. All-reduce runs between the replicas.
class MeshRank {
 public:
  MeshRank(const ThreadRank& here, const PipelineOptions& options)
      : replica_(here.rank / 2), world_(join_group(*here.store, here.rank, 4)) {
    same_stage_ = join_subset(*here.store, *world_, "replica", {here.rank % 2, here.rank % 2 + 2});
    stages_ = join_subset(*here.store, *world_, "stage", {2 * replica_, 2 * replica_ + 1});
    options_ = options;
    options_.replica = replica_;
    options_.replicas = 2;
    options_.same_stage = same_stage_.get();
  }
  std::unique_ptr<Pipeline> make() {
    const UpdateRule rule = make_update_rule(optimizer("sgd"));
    return std::make_unique<Pipeline>(mlp_task().factory, options_, *stages_, clock_,
                                      [&](const ModelFactory& part, const StageModel& stage) {
                                        AllReduceOptions exchange;
                                        exchange.master = exchange.working = options_.master;
                                        exchange.seed = options_.seed;
                                        exchange.parts = stage.parts();
                                        return std::make_unique<AllReduce>(part, rule, exchange, *same_stage_,
                                                                           clock_);
                                      });
  }
  // Each replica takes a half of the batch.
  void step(Pipeline& pipeline, int64_t step, const Batch& batch) {
    pipeline.begin_step({step, 0.05, false});
    pipeline.forward_backward(batch.part(replica_ * kBatch / 2, kBatch / 2));
    pipeline.update();
  }
  Group& world() { return *world_; }

 private:
  const int replica_;
  const SystemClock clock_;
  std::unique_ptr<Group> world_, same_stage_, stages_;
  PipelineOptions options_;
};

TEST(CalibratedActivations, ReplicasKeepTheirOwnRanges) {
  Definition definition{.steps = 1};
  definition.cut = {0, 4, 8};
  const PipelineOptions options = calibrated(make_schedule("1f1b", 2, 1, 4), definition);
  StrategyState middle, last;  // of rank 0
  std::vector<Batch> batches;  // the threads cannot draw them, because torch has one generator
  for (int64_t step = 0; step <= 5; ++step) batches.push_back(mlp_task().batch(step));
  run_ranks(4, [&](const ThreadRank& here) {
    MeshRank rank(here, options);
    const auto steps = [&](Pipeline& pipeline, int64_t from, int64_t to) {
      for (int64_t step = from; step <= to; ++step) rank.step(pipeline, step, batches[step]);
    };
    const auto whole = rank.make();
    steps(*whole, 1, 3);
    StrategyState state = whole->state();
    EXPECT_EQ(here.rank == 0, !state.optimizer.empty());
    if (here.rank == 0) middle = std::move(state);
    steps(*whole, 4, 5);
    state = whole->state();
    if (here.rank == 0) last = std::move(state);
    barrier(rank.world());
    const auto resumed = rank.make();
    resumed->load_state(middle);
    steps(*resumed, 4, 5);
    state = resumed->state();
    if (here.rank > 0) return;
    for (const auto& [name, tensor] : last.parameters)
      EXPECT_TRUE(at::equal(tensor, state.parameters.at(name))) << name;
    EXPECT_EQ(state.optimizer.size(), last.optimizer.size());
    for (const char* name : {"cut4.activation0", "cut4.gradient0"}) {
      const at::Tensor first = last.optimizer.at(fmt::format("range@0/{}", name));
      const at::Tensor second = last.optimizer.at(fmt::format("range@1/{}", name));
      EXPECT_GT(first[0].item<double>(), 0) << name;
      EXPECT_NE(first[0].item<double>(), second[0].item<double>()) << name;
    }
  });
}

// A checkpoint may continue with other cuts. A cut that both have keeps its ranges, and a new cut is
// calibrated. A pipeline without ranges ignores them.
TEST(CalibratedActivations, OtherCutsAreCalibratedAnew) {
  const Task task = mlp_task();
  const SystemClock clock;
  Definition definition{.steps = 2};
  definition.cut = {0, 4, 8};
  const UpdateRule rule = make_update_rule(optimizer("sgd"));
  const auto bytes = [](LayerPerCore& threads) { return threads.strategy_stats().at("stage_bytes"); };
  const auto widths = [](size_t block) { return std::vector<double>{0, 17, 13, 11, 9, 8, 7, 6}[block]; };
  LayerPerCore first(task.factory, rule, calibrated(make_schedule("1f1b", 2, 1, 4), definition), clock);
  for (int64_t step = 1; step <= 3; ++step) one_step(first, task, step);
  EXPECT_EQ(bytes(first), 2 * kBatch * widths(4));
  const StrategyState state = first.state();
  definition.cut = {0, 2, 4, 8};
  LayerPerCore second(task.factory, rule, calibrated(make_schedule("1f1b", 3, 1, 4), definition), clock);
  second.load_state(state);
  one_step(second, task, 4);
  EXPECT_EQ(bytes(second), 2 * kBatch * (widths(4) + 8 * widths(2)));
  one_step(second, task, 5);
  one_step(second, task, 6);
  EXPECT_EQ(bytes(second), 2 * kBatch * (widths(4) + widths(2)));
  PipelineOptions exact = calibrated(make_schedule("1f1b", 2, 1, 4), definition);
  exact.activations = {};
  exact.cut = {0, 4, 8};
  LayerPerCore third(task.factory, rule, exact, clock);
  third.load_state(state);
  one_step(third, task, 4);
  EXPECT_EQ(bytes(third), 2 * kBatch * 8 * widths(4));
  EXPECT_EQ(third.state().optimizer.count("range@0/cut4.activation0"), 0u);
  EXPECT_EQ(third.strategy_stats().count("ranged_values"), 0u);
}

// The 8-bit code of a value that is not a number must not hide it.
TEST(CalibratedActivations, AnActivationThatIsNotFiniteStillEndsTheRun) {
  const Task task = mlp_task();
  const SystemClock clock;
  Definition definition{.steps = 1};
  definition.cut = {0, 4, 8};
  LayerPerCore threads(task.factory, make_update_rule(optimizer("sgd")),
                       calibrated(make_schedule("1f1b", 2, 1, 4), definition), clock);
  one_step(threads, task, 1);
  one_step(threads, task, 2);
  threads.begin_step({3, 0.05, false});
  Batch batch = task.batch(3);
  batch.input[0].fill_(std::numeric_limits<double>::infinity());
  try {
    threads.forward_backward(batch);
    FAIL() << "a loss that is not finite passed";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("the loss is nan at step 3"));
  }
}

// Evaluation runs the whole model, so no cut rounds its values.
TEST(CalibratedActivations, EvaluationIsExact) {
  const Task task = mlp_task();
  const SystemClock clock;
  Definition definition{.steps = 1};
  definition.cut = {0, 4, 8};
  LayerPerCore threads(task.factory, make_update_rule(optimizer("sgd")),
                       calibrated(make_schedule("1f1b", 2, 1, 4), definition), clock);
  for (int64_t step = 1; step <= 3; ++step) one_step(threads, task, step);
  const StrategyState state = threads.state();
  threads.consensus();
  Replica plain = make_replica(task.factory, at::kDouble, 9);
  const at::NoGradGuard no_grad;
  for (NamedTensor& p : plain.parameters) p.tensor.copy_(state.parameters.at(p.name));
  const at::Tensor input = task.batch(9).input.to(at::kDouble);
  EXPECT_TRUE(at::equal(threads.replica().model.forward(input), plain.model.forward(input)));
}

}  // namespace
}  // namespace starling
