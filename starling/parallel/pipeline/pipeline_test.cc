// Pipelines of real processes make the steps of one process, for every schedule and every cut.
#include "starling/parallel/pipeline/pipeline.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <array>
#include <atomic>
#include <cmath>
#include <set>

#include "starling/base/error.h"
#include "starling/c10d/data_type.h"
#include "starling/codec/codec_reference.h"
#include "starling/parallel/pipeline/layer_per_core.h"
#include "starling/parallel/pipeline/pipeline_test_task.h"
#include "starling/plan/schedule_check.h"
#include "starling/plan/schedule_text.h"

namespace starling {
namespace {

using testing::HasSubstr;

// A user's model whose skip connection passes every cut: {h, skip} goes from the first layer to the head.
struct SkipNet : torch::nn::Module {
  SkipNet() {
    for (int i = 0; i < 4; ++i) {
      layers.push_back(register_module(fmt::format("layer{}", i), torch::nn::Linear(12, 12)));
    }
    head = register_module("head", torch::nn::Linear(12, 5));
  }
  std::vector<torch::nn::Linear> layers;
  torch::nn::Linear head{nullptr};
};

Model skip_model() {
  const auto net = std::make_shared<SkipNet>();
  std::vector<Block> blocks;
  blocks.push_back(
      {"layer0", {net->layers[0].ptr()}, [l = net->layers[0]](const Tensors& x) mutable -> Tensors {
         const at::Tensor h = l(x[0].flatten(1)).tanh();
         return {h, h * 2};
       }});
  for (int i = 1; i < 4; ++i) {
    blocks.push_back(
        {fmt::format("layer{}", i),
         {net->layers[i].ptr()},
         [l = net->layers[i]](const Tensors& x) mutable -> Tensors { return {l(x[0]).tanh(), x[1]}; }});
  }
  blocks.push_back({"head", {net->head.ptr()}, [l = net->head](const Tensors& x) mutable -> Tensors {
                      return {l(x[0] + x[1])};
                    }});
  return {net, [blocks](const at::Tensor& x) { return run_blocks(blocks, 0, blocks.size(), {x})[0]; },
          cross_entropy, blocks};
}

// A model whose activations have 1.5 MB per micro-batch of four samples. A group cannot buffer so much before
// a rank receives it.
Model wide_model() {
  constexpr int64_t kWide = 4096;
  const auto net = std::make_shared<SkipNet>();
  std::vector<Block> blocks;
  for (int i = 0; i < 4; ++i) {
    blocks.push_back(make_block(fmt::format("layer{}", i), {net->layers[i].ptr()},
                                [l = net->layers[i]](const at::Tensor& x) mutable {
                                  const at::Tensor narrow = x.reshape({x.size(0), -1, 12}).mean(1);
                                  return l(narrow).tanh().repeat({1, kWide});
                                }));
  }
  blocks.push_back(make_block("head", {net->head.ptr()}, [l = net->head](const at::Tensor& x) mutable {
    return l(x.reshape({x.size(0), -1, 12}).mean(1));
  }));
  return {net, [blocks](const at::Tensor& x) { return run_blocks(blocks, 0, blocks.size(), {x})[0]; },
          cross_entropy, blocks};
}

StepReport one_step(Pipeline& pipeline, const Task& task, int64_t step) {
  pipeline.begin_step({step, 0.05, false});
  pipeline.forward_backward(task.batch(step));
  return pipeline.update();
}

// Runs every form on all ranks of one process group. Rank 0 compares with one process after the first and the
// last step.
void compare_with_one_process(const Task& task, int size, const std::vector<Form>& forms) {
  ForkedRanks ranks(size, [&](int rank, Store& store) {
    at::set_num_threads(1);  // fork does not copy the thread team of the parent process
    const auto group = join_group(store, rank, size);
    for (const char* name : {"sgd", "adamw"}) {
      std::map<std::string, at::Tensor> first, last;
      if (rank == 0) first = one_process(task, optimizer(name), 1);
      if (rank == 0) last = one_process(task, optimizer(name), kSteps);
      for (const Form& form : forms) {
        const std::string what =
            fmt::format("{} v={} m={} {}", form.schedule, form.chunks, form.micro_batches, name);
        SystemClock clock;
        Pipeline pipeline(task.factory, make_update_rule(optimizer(name)),
                          options_for(form.schedule, size, form.chunks, form.micro_batches), *group, clock);
        for (int64_t step = 1; step <= kSteps; ++step) {
          const StepReport report = one_step(pipeline, task, step);
          require(std::isfinite(report.loss) && report.loss > 0 && !report.stop,
                  what + ": the report is wrong");
          if (step != 1 && step != kSteps) continue;
          const StrategyState state = pipeline.state();
          if (rank == 0)
            require_equal(task, state, step == 1 ? first : last, 1e-10,
                          fmt::format("{} step {}", what, step));
        }
      }
    }
    barrier(*group);
  });
  ranks.wait_all();
}

TEST(PipelineTest, EveryScheduleEqualsOneProcess_Mlp_TwoRanks) {
  compare_with_one_process(
      mlp_task(), 2,
      {{"naive"}, {"gpipe"}, {"1f1b"}, {"interleaved", 2}, {"interleaved", 3, 2}, {"1f1b", 1, 1}});
}

TEST(PipelineTest, EveryScheduleEqualsOneProcess_Gpt_TwoRanks) {
  compare_with_one_process(gpt_task(), 2, {{"naive", 1, 2}, {"gpipe"}, {"1f1b", 1, 8}, {"interleaved", 2}});
}

TEST(PipelineTest, EveryScheduleEqualsOneProcess_Gpt_ThreeAndFourRanks) {
  compare_with_one_process(gpt_task(), 3, {{"1f1b", 1, 16}, {"gpipe", 1, 2}});
  compare_with_one_process(gpt_task(), 4, {{"1f1b"}, {"interleaved", 2, 8}});
}

TEST(PipelineTest, EveryScheduleEqualsOneProcess_Llama) {
  compare_with_one_process(llama_task(false), 2, {{"gpipe"}, {"1f1b", 1, 8}, {"interleaved", 2}});
  compare_with_one_process(llama_task(true), 4, {{"1f1b"}, {"interleaved", 2, 8}});
}

TEST(PipelineTest, SkipConnectionsPassTheCuts) {
  Task task = mlp_task();
  task.factory = skip_model;
  compare_with_one_process(task, 3, {{"1f1b"}, {"gpipe", 1, 2}});
}

TEST(PipelineTest, LongMessagesInBothDirectionsWaitForNobody) {
  Task task = mlp_task();
  task.factory = wide_model;
  compare_with_one_process(task, 2, {{"1f1b"}, {"interleaved", 2, 2}});
}

// Copies a snapshot from rank 0 to all ranks, with masters of this type and their momentum.
void bring_to_all(Group& group, const Task& task, StrategyState& state, at::ScalarType type = at::kDouble) {
  for (auto* part : {&state.parameters, &state.optimizer}) {
    for (const NamedTensor& p : make_replica(task.factory, type, 9).parameters) {
      const std::string name = part == &state.parameters ? p.name : "momentum/" + p.name;
      at::Tensor& value = (*part)[name];
      if (group.rank() > 0) value = at::empty_like(p.tensor.detach());
      broadcast(group, value.data_ptr(), value.numel(), data_type_of(type), 0);
    }
  }
}

TEST(PipelineTest, TablesFromFilesClippingAndCheckpointsOfOtherMeshes) {
  const Task task = gpt_task();
  ForkedRanks ranks(2, [&](int rank, Store& store) {
    at::set_num_threads(1);  // fork does not copy the thread team of the parent process
    const auto group = join_group(store, rank, 2);
    SystemClock clock;
    // The optimizer has momentum, because Adam's update does not depend on the scale of the gradient.
    PipelineOptions options = options_for("1f1b", 2, 1, 2);
    options.clip_norm = 0.1;
    // The second micro-batch goes first.
    options.schedule = parse_schedule(
        "ranks 2 micro-batches 2\nrank 0: F1 SA1 F0 SA0 RG1 B1 RG0 B0\nrank 1: RA1 F1 B1 SG1 RA0 F0 B0 SG0\n",
        "mine");
    const UpdateRule rule = make_update_rule(optimizer("sgd"));
    StrategyState at_2;
    {
      Pipeline pipeline(task.factory, rule, options, *group, clock);
      one_step(pipeline, task, 1);
      one_step(pipeline, task, 2);
      // consensus() must not change later steps or snapshots.
      pipeline.consensus();
      at_2 = pipeline.state();
      for (int64_t step = 3; step <= kSteps; ++step) one_step(pipeline, task, step);
      const StrategyState state = pipeline.state();
      if (rank == 0)
        require_equal(task, state, one_process(task, optimizer("sgd"), kSteps, 0.1), 1e-10, "clipped");
      require(rank == 0 || state.parameters.empty(), "a state elsewhere than on rank 0");
    }
    // Training continues from the snapshot with another schedule and another cut. Rank 1 loads what rank 0
    // wrote.
    bring_to_all(*group, task, at_2);
    at_2.step = 2;
    PipelineOptions other = options_for("interleaved", 2, 2, 4);
    other.clip_norm = 0.1;
    other.seed = 77;
    other.cut = {0, 1, 4, 5, 8};
    Pipeline pipeline(task.factory, rule, other, *group, clock);
    pipeline.load_state(at_2);
    for (int64_t step = 3; step <= kSteps; ++step) one_step(pipeline, task, step);
    const StrategyState state = pipeline.state();
    if (rank == 0)
      require_equal(task, state, one_process(task, optimizer("sgd"), kSteps, 0.1), 1e-10, "resumed");
    // Evaluation sees the whole model on every rank.
    pipeline.consensus();
    const at::Tensor out = pipeline.replica().model.forward(task.batch(9).input).detach().contiguous();
    at::Tensor mean = out.clone();
    all_reduce(*group, mean.data_ptr(), mean.numel(), DataType::kFp64, ReduceOp::kSum);
    require(at::equal(mean, out * 2), "the ranks evaluate different models");
    barrier(*group);
  });
  ranks.wait_all();
}

// Returns the values that a message of `x` encodes.
at::Tensor coded(const at::Tensor& x, const std::string& word) {
  const at::Tensor flat = x.detach().to(at::kFloat).contiguous();
  const Values values(flat.const_data_ptr<float>(), flat.const_data_ptr<float>() + flat.numel());
  const Values said = word == "fp16"   ? fp16_reference(values)
                      : word == "bf16" ? bf16_reference(values)
                                       : int8_reference(values, 256, {});
  return at::tensor(said).view(x.sizes()).to(x.scalar_type());
}

TEST(PipelineTest, ActivationsTravelInFewerBytes) {
  const Task task = gpt_task();
  constexpr int64_t kMicro = 4, kValues = kBatch / kMicro * 6 * 16;
  const std::map<std::string, int64_t> bytes = {
      {"fp16", 2 * kValues}, {"bf16", 2 * kValues}, {"int8", kValues + 4 * 2}};
  ForkedRanks ranks(2, [&](int rank, Store& store) {
    at::set_num_threads(1);  // fork does not copy the thread team of the parent process
    const auto group = join_group(store, rank, 2);
    for (const auto& item : bytes) {
      const std::string& word = item.first;
      SystemClock clock;
      PipelineOptions options = options_for("1f1b", 2, 1, kMicro);
      options.cut = {0, 4, 8};
      options.activations.word = word;
      Pipeline pipeline(task.factory, make_update_rule(optimizer("sgd")), options, *group, clock);
      for (int64_t step = 1; step <= kSteps; ++step) one_step(pipeline, task, step);
      std::map<std::string, double> facts;
      for (const auto& [name, value] : pipeline.strategy_stats()) facts[name] = value;
      const int64_t expected = 2 * kMicro * item.second;
      require(facts["stage_bytes"] == expected, fmt::format("{}: {} bytes", word, facts["stage_bytes"]));
      const StrategyState state = pipeline.state();
      if (rank > 0) continue;
      const Backward by_micro_batch = [&](const Model& model, const at::Tensor& input,
                                          const at::Tensor& target) {
        for (int64_t m = 0; m < kMicro; ++m) {
          const int64_t n = kBatch / kMicro;
          const at::Tensor sent = run_blocks(model.blocks, 0, 4, {input.narrow(0, m * n, n)})[0];
          const at::Tensor received = coded(sent, word).requires_grad_();
          const at::Tensor out = run_blocks(model.blocks, 4, 8, {received})[0];
          (model.loss(out, target.narrow(0, m * n, n)) / kMicro).backward();
          // The gradient is sent before it is divided by the number of micro-batches.
          sent.backward(coded(received.grad() * kMicro, word) / kMicro);
        }
      };
      require_equal(task, state, one_process(task, optimizer("sgd"), kSteps, 0, by_micro_batch), 1e-10, word);
    }
    barrier(*group);
  });
  ranks.wait_all();
}

// Returns what the steps have added to the parameters, as one vector.
at::Tensor added(const std::map<std::string, at::Tensor>& before,
                 const std::map<std::string, at::Tensor>& after) {
  std::vector<at::Tensor> parts;
  for (const auto& [name, tensor] : before)
    parts.push_back((after.at(name).to(at::kDouble) - tensor.to(at::kDouble)).flatten());
  return at::cat(parts);
}

// bf16 weights with int8 activations stay near one process in fp64. The fp32 masters are saved and resumed.
TEST(PipelineTest, SixteenBitWeightsWithEightBitActivations) {
  const Task task = gpt_task();
  constexpr int64_t kMicro = 4, kValues = kBatch / kMicro * 6 * 16;
  const std::map<std::string, int64_t> bytes = {{"none", 2 * kValues}, {"int8", kValues + 4 * 2}};
  ForkedRanks ranks(2, [&](int rank, Store& store) {
    at::set_num_threads(1);  // fork does not copy the thread team of the parent process
    const auto group = join_group(store, rank, 2);
    const SystemClock clock;
    for (const auto& [word, bytes_each] : bytes) {
      PipelineOptions options = options_for("1f1b", 2, 1, kMicro);
      options.master = at::kFloat;
      options.working = at::kBFloat16;
      options.activations.word = word;
      const UpdateRule rule = make_update_rule(optimizer("sgd"));
      Pipeline pipeline(task.factory, rule, options, *group, clock);
      for (const NamedTensor& p : pipeline.replica().parameters)
        require(p.tensor.scalar_type() == at::kBFloat16, p.name + " is not of 16 bits");
      const StrategyState before = pipeline.state();
      StrategyState middle;
      for (int64_t step = 1; step <= kSteps; ++step) {
        one_step(pipeline, task, step);
        if (step == 2) middle = pipeline.state();
      }
      const StrategyState after = pipeline.state();
      std::map<std::string, double> facts;
      for (const auto& [name, value] : pipeline.strategy_stats()) facts[name] = value;
      require(facts["stage_bytes"] == 2 * kMicro * bytes_each,
              fmt::format("{}: {} bytes", word, facts["stage_bytes"]));

      bring_to_all(*group, task, middle, at::kFloat);
      middle.step = 2;
      Pipeline resumed(task.factory, rule, options, *group, clock);
      resumed.load_state(middle);
      for (int64_t step = 3; step <= kSteps; ++step) one_step(resumed, task, step);
      const StrategyState again = resumed.state();
      if (rank > 0) continue;
      for (const auto& [name, tensor] : after.parameters)
        require(tensor.scalar_type() == at::kFloat && at::equal(tensor, again.parameters.at(name)),
                name + " differs after resuming");
      std::map<std::string, at::Tensor> initial;
      for (const NamedTensor& p : make_replica(task.factory, at::kDouble, 3).parameters)
        initial[p.name] = p.tensor.detach();
      const double apart = relative_difference(added(before.parameters, after.parameters),
                                               added(initial, one_process(task, optimizer("sgd"), kSteps)));
      require(apart < 0.05, fmt::format("{}: the updates are {} apart", word, apart));
    }
    barrier(*group);
  });
  ranks.wait_all();
}

TEST(PipelineTest, StatisticsTimelineAndWhatTheRanksHold) {
  const Task task = gpt_task();
  ForkedRanks ranks(2, [&](int rank, Store& store) {
    at::set_num_threads(1);  // fork does not copy the thread team of the parent process
    const auto group = join_group(store, rank, 2);
    SystemClock clock;
    PipelineOptions options = options_for("1f1b", 2, 1, 4);
    options.sample = {task.batch(1).input.narrow(0, 0, 4),
                      task.batch(1).target.narrow(0, 0, 4)};  // measured cut
    Pipeline pipeline(task.factory, make_update_rule(optimizer("adamw")), options, *group, clock);
    for (int64_t step = 1; step <= 3; ++step) one_step(pipeline, task, step);
    std::map<std::string, double> facts;
    for (const auto& [name, value] : pipeline.strategy_stats()) facts[name] = value;
    require(facts["stages"] == 2 && facts["micro_batches"] == 4 && facts["live_activations"] == 2, "stages");
    require(facts["bubble_planned"] == 0.2, "planned bubble");
    // One activation [4, 6, 16] of fp64 and its gradient, four times.
    require(facts["stage_bytes"] == 2 * 4 * (4 * 6 * 16 * 8), fmt::format("{} bytes", facts["stage_bytes"]));
    const std::vector<MeasuredAction> timeline = pipeline.gather_timeline();
    require(timeline.size() == (rank == 0 ? 2 * 16u : 0u), fmt::format("{} actions", timeline.size()));
    for (const MeasuredAction& a : timeline) require(0 <= a.begin_ns && a.begin_ns <= a.end_ns, "times");
    // The parameters of the other stage are present only between consensus() and the next step.
    const auto held = [&] {
      size_t bytes = 0;
      std::set<const void*> counted;  // what this rank trains lies in one flat range
      for (const NamedTensor& p : pipeline.replica().parameters) {
        if (counted.insert(p.tensor.storage().data()).second) bytes += p.tensor.storage().nbytes();
      }
      return bytes;
    };
    const size_t part = held();
    pipeline.consensus();
    const size_t whole = held();
    pipeline.begin_step({4, 0.05, false});
    const size_t all = 8 * static_cast<size_t>(parameter_count(pipeline.replica()));
    require(whole >= all, "the whole model's bytes");
    require(part < 0.8 * whole && held() == part, fmt::format("{} of {} bytes", part, whole));
    barrier(*group);
  });
  ranks.wait_all();
}

// A clock that advances by one tick at every reading, and by `growth` more than at the reading before.
class TickingClock final : public Clock {
 public:
  explicit TickingClock(Nanoseconds tick, Nanoseconds growth = Nanoseconds{0})
      : tick_(tick), growth_(growth) {}
  Nanoseconds now() const override {
    const int64_t n = ++readings_;
    return n * tick_ + n * (n - 1) / 2 * growth_;
  }

 private:
  const Nanoseconds tick_, growth_;
  mutable std::atomic<int64_t> readings_{0};
};

// Trains three steps of 1F1B on two ranks with four micro-batches. Rank 0 passes its statistics and the
// actions of both ranks to `check`.
void three_steps(int rank, Store& store, const Clock& clock,
                 const std::function<void(const StrategyStats&, const std::vector<MeasuredAction>&)>& check) {
  const Task task = mlp_task();
  at::set_num_threads(1);  // fork does not copy the thread team of the parent process
  const auto group = join_group(store, rank, 2);
  Pipeline pipeline(task.factory, make_update_rule(optimizer("sgd")), options_for("1f1b", 2, 1, 4), *group,
                    clock);
  for (int64_t step = 1; step <= 3; ++step) one_step(pipeline, task, step);
  const StrategyStats stats = pipeline.strategy_stats();
  const std::vector<MeasuredAction> timeline = pipeline.gather_timeline();
  barrier(*group);
  if (rank == 0) check(stats, timeline);
}

void require_equal(const StrategyStats& stats, const char* name, double want) {
  require(std::fabs(stats.at(name) - want) < 1e-9, fmt::format("{}: {} for {}", name, stats.at(name), want));
}

bool is_pass(const MeasuredAction& a) {
  return a.action.kind == ActionKind::kForward || a.action.kind == ActionKind::kBackward;
}

double seconds(int64_t ns) {
  return static_cast<double>(ns) * 1e-9;
}

// Every action takes one tick: 1 ms on rank 0 and 2 ms on rank 1.
TEST(PipelineTest, TheBubbleIsWhatTheTimesOfTheActionsSay) {
  ForkedRanks ranks(2, [&](int rank, Store& store) {
    const TickingClock clock(std::chrono::milliseconds(1 + rank));
    three_steps(rank, store, clock,
                [](const StrategyStats& stats, const std::vector<MeasuredAction>& timeline) {
                  double busy = 0;
                  std::array<double, 2> first{1e300, 1e300}, last{};
                  for (const MeasuredAction& a : timeline) {
                    if (is_pass(a)) busy += seconds(a.end_ns - a.begin_ns);
                    first[a.rank] = std::min(first[a.rank], seconds(a.begin_ns));
                    last[a.rank] = std::max(last[a.rank], seconds(a.end_ns));
                  }
                  // The span of a rank begins one reading before its first action and ends one reading after
                  // its last.
                  const double span = std::max(last[0] - first[0] + 0.002, last[1] - first[1] + 0.004);
                  require_equal(stats, "bubble", 1 - busy / (2 * span));
                  require_equal(stats, "bubble_mean", 1 - busy / (2 * span));
                  require(busy >= 8 * 0.001 + 8 * 0.002, fmt::format("{} s of computation", busy));
                });
  });
  ranks.wait_all();
}

// The later passes of a step take longer here, and most of the later ones are backward. A stage's passes
// count as equally long as their mean. Rank 1 is idle only in the first forward and the last backward of rank
// 0.
TEST(PipelineTest, TheBalancedBubbleIsThatOfTheMeanTimes) {
  ForkedRanks ranks(2, [&](int rank, Store& store) {
    const TickingClock clock(std::chrono::milliseconds(1 + rank), std::chrono::milliseconds(1 + 3 * rank));
    three_steps(
        rank, store, clock, [](const StrategyStats& stats, const std::vector<MeasuredAction>& timeline) {
          std::array<double, 2> forward{}, backward{};  // means of the ranks
          for (const MeasuredAction& a : timeline) {
            if (is_pass(a))
              (a.action.kind == ActionKind::kForward ? forward : backward)[a.rank] +=
                  seconds(a.end_ns - a.begin_ns) / 4;
          }
          require(backward[0] / forward[0] > 1.01 * backward[1] / forward[1], "the stages do not differ");
          const double busy = 4 * (forward[0] + backward[0] + forward[1] + backward[1]);
          const double span = forward[0] + 4 * (forward[1] + backward[1]) + backward[0];
          require_equal(stats, "bubble_balanced", 1 - busy / (2 * span));
        });
  });
  ranks.wait_all();
}

// One process with one stage per thread.
TEST(PipelineTest, StagesMayBeThreads) {
  const Task task = mlp_task();
  SystemClock clock;
  LayerPerCore threads(task.factory, make_update_rule(optimizer("sgd")), options_for("1f1b", 4, 1, 8), clock);
  double loss = 0;
  for (int64_t step = 1; step <= kSteps; ++step) {
    threads.begin_step({step, 0.05, false});
    loss = threads.forward_backward(task.batch(step));
    EXPECT_EQ(threads.update().loss, loss);
  }
  EXPECT_GT(loss, 0);
  require_equal(task, threads.state(), one_process(task, optimizer("sgd"), kSteps), 1e-10, "threads");
  EXPECT_EQ(threads.gather_timeline().size(), static_cast<size_t>(2 * 8 * 4 + 2 * 2 * 8 * 3));
  threads.consensus();
  EXPECT_EQ(parameter_count(threads.replica()), parameter_count(make_replica(task.factory, at::kFloat, 1)));
}

TEST(PipelineTest, AFaultInOneThreadEndsAllOfThem) {
  const Task task = mlp_task();
  SystemClock clock;
  LayerPerCore threads(task.factory, make_update_rule(optimizer("sgd")), options_for("gpipe", 3, 1, 4),
                       clock);
  threads.begin_step({1, 0.05, false});
  Batch batch = task.batch(1);
  batch.input.fill_(std::nan(""));
  try {
    threads.forward_backward(batch);
    FAIL() << "a loss that is not finite passed";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("the loss is nan at step 1"));
  }
}

// Returns the message with which a pipeline of one process refuses its input.
std::string refusal(const PipelineOptions& options, const Task& task, int64_t step = 0) {
  const auto group = make_single_group();
  SystemClock clock;
  try {
    Pipeline pipeline(task.factory, make_update_rule(optimizer("sgd")), options, *group, clock);
    if (step > 0) one_step(pipeline, task, step);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(PipelineTest, OneRankHoldsAllChunks) {
  const Task task = gpt_task();
  const auto group = make_single_group();
  SystemClock clock;
  Pipeline pipeline(task.factory, make_update_rule(optimizer("adamw")), options_for("interleaved", 1, 3, 4),
                    *group, clock);
  for (int64_t step = 1; step <= kSteps; ++step) one_step(pipeline, task, step);
  EXPECT_LE(largest_difference(pipeline.state().parameters, one_process(task, optimizer("adamw"), kSteps))
                .difference,
            1e-10);
}

// A wait never ends early, so no pass is shorter than its pace.
TEST(PipelineTest, PassesKeepTheirPace) {
  const Task task = mlp_task();
  const auto group = make_single_group();
  const SystemClock clock;
  PipelineOptions options = options_for("gpipe", 1, 1, 4);
  options.pace = {0.003, 0.005};
  options.cut = {0, 8};
  Pipeline pipeline(task.factory, make_update_rule(optimizer("sgd")), options, *group, clock);
  one_step(pipeline, task, 1);
  int passes = 0;
  for (const MeasuredAction& a : pipeline.gather_timeline()) {
    if (!is_pass(a)) continue;
    const double least = a.action.kind == ActionKind::kForward ? 0.003 : 0.005;
    EXPECT_GE(seconds(a.end_ns - a.begin_ns), least);
    ++passes;
  }
  EXPECT_EQ(passes, 8);
}

TEST(PipelineTest, BadInputIsRefused) {
  const Task task = mlp_task();
  EXPECT_THAT(refusal(options_for("interleaved", 1, 9, 4), task),
              HasSubstr("9 stages, but the model has 8 blocks"));
  EXPECT_THAT(refusal(options_for("1f1b", 2, 1, 4), task),
              HasSubstr("is for 2 ranks, but the stage axis has 1"));
  EXPECT_THAT(refusal(options_for("1f1b", 1, 1, 3), task, 1),
              HasSubstr("16 samples cannot be divided into 3"));
  PipelineOptions cut = options_for("interleaved", 1, 2, 4);
  cut.cut = {0, 8, 8};
  EXPECT_THAT(refusal(cut, task), HasSubstr("the cut does not divide 8 blocks into 2 stages"));
  Task plain = task;
  plain.factory = [&] {
    Model model = task.factory();
    model.blocks.clear();
    return model;
  };
  EXPECT_THAT(refusal(options_for("1f1b", 1, 1, 4), plain),
              HasSubstr("has no blocks at which it can be cut"));
  Task broken = task;
  broken.batch = [&](int64_t step) {
    Batch batch = task.batch(step);
    batch.input.fill_(std::nan(""));
    return batch;
  };
  EXPECT_THAT(refusal(options_for("1f1b", 1, 1, 4), broken, 1), HasSubstr("the loss is nan at step 1"));
}

}  // namespace
}  // namespace starling
