// Threads without locks on real threads. A script fixes the order of their reads and updates, so that a
// simulation in plain loops must give equal weights. Other tests let the threads run freely. Their results do
// not depend on the order, because the sums are exact, or because no two threads share a feature.
#include "starling/parallel/hogwild.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <limits>
#include <mutex>

#include "starling/base/clock.h"
#include "starling/base/error.h"
#include "starling/base/keyed_random.h"
#include "starling/comm/bootstrap.h"
#include "starling/parallel/easgd.h"
#include "starling/parallel/local_sgd.h"
#include "starling/parallel/parallel_sgd.h"
#include "starling/torch_testing/torch_group_processes.h"

namespace starling {
namespace {

constexpr double kLr = 0.3;
constexpr std::chrono::seconds kPatience{60};

OptimizerSpec plain_sgd(double weight_decay = 0, bool exempt_vectors = false) {
  OptimizerSpec spec;
  spec.momentum = 0;
  spec.weight_decay = weight_decay;
  spec.exempt_vectors = exempt_vectors;
  return spec;
}

FlatReplicaOptions options_of(int threads, int64_t updates, bool sparse, at::ScalarType type) {
  FlatReplicaOptions options;
  options.master = options.working = type;
  options.hogwild = {threads, updates, sparse};
  return options;
}

// A strategy and the group of its only rank.
struct Alone {
  Alone(const ModelFactory& model, const FlatReplicaOptions& options, const OptimizerSpec& spec = plain_sgd())
      : group(make_single_group()), strategy(model, make_update_rule(spec), options, *group, clock) {}
  StepReport step(int64_t index, double lr, const Batch& batch) {
    strategy.begin_step({index, lr, false});
    strategy.forward_backward(batch);
    return strategy.update();
  }
  // Returns a copy of the first parameter.
  at::Tensor weights() { return strategy.evaluated().parameters[0].tensor.detach().clone(); }

  SystemClock clock;
  std::unique_ptr<Group> group;
  Hogwild strategy;
};

// The loss of a sample a is `loss`(w, a), for `size` weights that begin as `initial`.
ModelFactory model_of(int64_t size, double initial,
                      const std::function<at::Tensor(const at::Tensor& w, const at::Tensor& a)>& loss) {
  return [=] {
    auto module = std::make_shared<torch::nn::Module>();
    module->register_parameter("w", torch::full({size}, initial));
    Model model;
    model.module = module;
    model.forward = [m = module.get(), loss](const at::Tensor& a) {
      return loss(m->named_parameters()["w"], a);
    };
    model.loss = [](const at::Tensor& y, const at::Tensor&) { return y.mean(); };
    return model;
  };
}

ModelFactory quadratic(int64_t size) {
  return model_of(size, 1,
                  [](const at::Tensor& w, const at::Tensor& a) { return (w - a).square().sum(1) / 2; });
}

// The gradient is a, whatever the weights are.
ModelFactory fixed_gradients(int64_t size) {
  return model_of(size, 0, [](const at::Tensor& w, const at::Tensor& a) { return (w * a).sum(1); });
}

Batch batch_of(const at::Tensor& samples) {
  return {samples, torch::zeros({samples.size(0)})};
}

at::Tensor normal_samples(int64_t count, int64_t size, int64_t key, at::ScalarType type) {
  torch::manual_seed(key);
  return torch::randn({count, size}, type);
}

struct Event {
  int thread = 0;
  HogwildAccess access = HogwildAccess::kRead;
  bool operator==(const Event&) const = default;
};

// Lets the accesses of all threads happen one after another, in a given order.
class Script {
 public:
  void begin(std::vector<Event> events) {
    events_ = std::move(events);
    next_ = 0;
  }
  void access(const Event& event, bool done) {
    std::unique_lock lock(mutex_);
    if (done) {
      ++next_;
      changed_.notify_all();
      return;
    }
    const auto turn = [&] { return next_ < events_.size() && events_[next_] == event; };
    if (!changed_.wait_for(lock, kPatience, turn)) throw std::runtime_error("the script does not go on");
  }
  bool ended() const { return next_ == events_.size(); }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Event> events_;
  size_t next_ = 0;
};

// Returns the accesses of a step in a random order. Each thread reads and updates in turn.
std::vector<Event> random_order(int threads, int64_t updates, uint64_t key) {
  std::vector<int64_t> made(static_cast<size_t>(threads), 0);
  std::vector<Event> events;
  for (uint64_t draw = 0; events.size() < static_cast<size_t>(2 * threads * updates); ++draw) {
    const size_t t = key_of(key, draw, 0) % static_cast<size_t>(threads);
    if (made[t] == 2 * updates) continue;
    events.push_back({static_cast<int>(t), made[t] % 2 == 0 ? HogwildAccess::kRead : HogwildAccess::kUpdate});
    ++made[t];
  }
  return events;
}

// The paper's algorithm in plain loops, for the quadratic loss.
struct Simulation {
  std::vector<double> x;
  uint64_t updates = 0, delays = 0, largest_delay = 0;

  void step(const std::vector<Event>& events, const at::Tensor& samples, int threads, int64_t each, double lr,
            double decay) {
    const int64_t parts = threads * each, n = samples.size(0);
    std::vector<std::vector<double>> read(static_cast<size_t>(threads));
    std::vector<uint64_t> before(static_cast<size_t>(threads));
    std::vector<int64_t> made(static_cast<size_t>(threads), 0);
    for (const Event& event : events) {
      const auto t = static_cast<size_t>(event.thread);
      if (event.access == HogwildAccess::kRead) {
        read[t] = x;
        before[t] = updates;
        continue;
      }
      const int64_t part = event.thread * each + made[t]++;
      const int64_t begin = n * part / parts, end = n * (part + 1) / parts;
      for (size_t d = 0; d < x.size(); ++d) {
        double g = 0;
        for (int64_t i = begin; i < end; ++i)
          g += (read[t][d] - samples[i][static_cast<int64_t>(d)].item<double>()) /
               static_cast<double>(end - begin);
        x[d] -= lr * static_cast<double>(end - begin) / static_cast<double>(n) * (g + decay * read[t][d]);
      }
      delays += updates - before[t];
      largest_delay = std::max(largest_delay, updates - before[t]);
      ++updates;
    }
  }
};

TEST(Hogwild, FollowsItsEquationsInAGivenOrder) {
  constexpr int kThreads = 3, kSteps = 6;
  constexpr int64_t kUpdates = 2, kSize = 5, kSamples = 14;  // parts of 2 and 3 samples
  for (const double decay : {0.0, 0.2}) {
    Script script;
    Alone run(quadratic(kSize), options_of(kThreads, kUpdates, false, at::kDouble), plain_sgd(decay));
    run.strategy.threads()->set_on_access(
        [&script](int thread, HogwildAccess access, bool done) { script.access({thread, access}, done); });
    Simulation expected;
    expected.x.assign(kSize, 1);
    for (int64_t step = 1; step <= kSteps; ++step) {
      const at::Tensor samples = normal_samples(kSamples, kSize, step, at::kDouble);
      const std::vector<Event> order = random_order(kThreads, kUpdates, static_cast<uint64_t>(step));
      script.begin(order);
      const StepReport report = run.step(step, kLr, batch_of(samples));
      EXPECT_TRUE(script.ended());
      EXPECT_EQ(report.bytes_sent, 0u);
      expected.step(order, samples, kThreads, kUpdates, kLr, decay);
      const at::Tensor found = run.weights();
      for (size_t d = 0; d < expected.x.size(); ++d)
        EXPECT_NEAR(found[static_cast<int64_t>(d)].item<double>(), expected.x[d], 1e-12) << step;
    }
    const StrategyStats stats = run.strategy.strategy_stats();
    EXPECT_EQ(stats.at("threads"), kThreads);
    EXPECT_EQ(stats.at("thread_updates"), kSteps * kThreads * kUpdates);
    EXPECT_EQ(stats.at("touched_share"), 1);
    EXPECT_EQ(stats.at("largest_delay"), static_cast<double>(expected.largest_delay));
    EXPECT_GT(expected.largest_delay, 0u);
    EXPECT_NEAR(stats.at("mean_delay"), static_cast<double>(expected.delays) / (kSteps * kThreads * kUpdates),
                1e-12);
  }
}

// One thread with one update per step is plain SGD on the whole batch. Its bits are those of the update rule.
TEST(Hogwild, OneThreadIsPlainSgd) {
  const ModelFactory mlp = [] {
    ModelSpec spec;
    spec.name = "mlp";
    spec.widths = {12, 9, 5};
    return zoo_model(spec, {{12}, 5, false})();
  };
  for (const bool exempt : {false, true}) {
    const OptimizerSpec spec = plain_sgd(0.1, exempt);
    FlatReplicaOptions options = options_of(1, 1, false, at::kFloat);
    options.clip_norm = 0.5;
    Alone run(mlp, options, spec);
    options.hogwild = {};
    LocalSgd reference(mlp, make_update_rule(spec), options, 1000, *run.group, run.clock);
    for (int64_t step = 1; step <= 4; ++step) {
      const Batch batch{normal_samples(8, 12, step, at::kFloat), torch::arange(8) % 5};
      run.step(step, kLr, batch);
      reference.begin_step({step, kLr, false});
      reference.forward_backward(batch);
      reference.update();
    }
    const auto &found = run.strategy.evaluated().parameters, &expected = reference.evaluated().parameters;
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i)
      EXPECT_TRUE(torch::equal(found[i].tensor, expected[i].tensor)) << found[i].name << exempt;
  }
}

// Samples of thread t have features t · kOwn … (t + 1) · kOwn − 1 only. So no update of another thread
// changes a weight that a thread uses. The threads therefore give the bits of one thread that makes all
// updates in order.
TEST(Hogwild, DisjointFeaturesGiveTheBitsOfOneThread) {
  constexpr int kThreads = 4, kSteps = 20;
  constexpr int64_t kUpdates = 3, kOwn = 10, kSize = kThreads * kOwn, kSamples = 2 * kThreads * kUpdates;
  const ModelFactory linear = model_of(
      kSize, 0.25, [](const at::Tensor& w, const at::Tensor& a) { return ((w * a).sum(1) - 1).square(); });
  const auto samples = [&](int64_t step) {
    at::Tensor all = torch::zeros({kSamples, kSize});
    const at::Tensor values = normal_samples(kSamples, kOwn, step, at::kFloat);
    for (int64_t i = 0; i < kSamples; ++i) {
      const int64_t thread = i / (kSamples / kThreads);
      all[i].narrow(0, thread * kOwn, kOwn).copy_(values[i] * (values[i] > 0.5));
    }
    return all;
  };
  Alone one(linear, options_of(1, kThreads * kUpdates, false, at::kFloat));
  for (int64_t step = 1; step <= kSteps; ++step) one.step(step, 1.0, batch_of(samples(step)));
  EXPECT_GT((one.weights() - 0.25).abs().max().item<double>(), 0.01);
  for (const bool sparse : {false, true}) {
    Alone several(linear, options_of(kThreads, kUpdates, sparse, at::kFloat));
    for (int64_t step = 1; step <= kSteps; ++step) several.step(step, 1.0, batch_of(samples(step)));
    EXPECT_TRUE(torch::equal(several.weights(), one.weights())) << sparse;
    const StrategyStats stats = several.strategy.strategy_stats();
    if (sparse) {
      EXPECT_LE(stats.at("touched_share"), 1.0 / kThreads);
    } else {
      EXPECT_EQ(stats.at("touched_share"), 1);
    }
    EXPECT_LE(stats.at("largest_delay"), (kThreads - 1) * kUpdates);
  }
}

// Small integers as gradients and a rate that is a power of two: each sum is exact in any order.
at::Tensor integer_samples(int64_t count, int64_t size, int64_t key) {
  torch::manual_seed(key);
  return torch::randint(-3, 4, {count, size}).to(at::kFloat);
}

TEST(Hogwild, LosesNoUpdate) {
  constexpr int kThreads = 4, kSteps = 50;
  constexpr int64_t kUpdates = 8, kSize = 30;
  for (const bool sparse : {false, true}) {
    Alone run(fixed_gradients(kSize), options_of(kThreads, kUpdates, sparse, at::kFloat));
    at::Tensor expected = torch::zeros({kSize});
    for (int64_t step = 1; step <= kSteps; ++step) {
      const at::Tensor samples = integer_samples(kThreads * kUpdates, kSize, step);
      run.step(step, 1.0, batch_of(samples));
      expected -= samples.sum(0) / (kThreads * kUpdates);
    }
    EXPECT_TRUE(torch::equal(run.weights(), expected));
  }
}

TEST(Hogwild, ABatchWithFewerSamplesThanUpdatesIsCutIntoSamples) {
  Alone run(fixed_gradients(4), options_of(2, 4, false, at::kFloat));
  const at::Tensor samples = integer_samples(4, 4, 1);
  run.step(1, 1.0, batch_of(samples));
  EXPECT_TRUE(torch::equal(run.weights(), -samples.sum(0) / 4));
  EXPECT_EQ(run.strategy.strategy_stats().at("thread_updates"), 4);
}

// Each thread computes with buffers of its own, which begin each step as those of the rank.
TEST(Hogwild, BuffersAreTheirMeanOverTheThreads) {
  const ModelFactory counting = [] {
    auto module = std::make_shared<torch::nn::Module>();
    module->register_parameter("w", torch::ones({2}));
    const at::Tensor product = module->register_buffer("product", torch::ones({1}));
    const at::Tensor count = module->register_buffer("count", torch::zeros({1}, torch::kLong));
    Model model;
    model.module = module;
    model.forward = [m = module.get(), product, count](const at::Tensor& a) {
      const at::NoGradGuard no_grad;
      product.mul_(a.mean());
      count.add_(a.size(0));
      const at::AutoGradMode grad(true);
      return (m->named_parameters()["w"] * a).sum(1);
    };
    model.loss = [](const at::Tensor& y, const at::Tensor&) { return y.mean(); };
    return model;
  };
  Alone run(counting, options_of(2, 1, false, at::kFloat));
  for (int64_t step = 1; step <= 2; ++step)
    run.step(step, 0.1, batch_of(torch::tensor({{1.0F, 1.0F}, {1.0F, 1.0F}, {1.0F, 1.0F}, {4.0F, 6.0F}})));
  run.strategy.consensus();
  const StrategyState state = run.strategy.state();
  // The threads multiply by 1 and by 3: (1 + 3) / 2 = 2, then (2 · 1 + 2 · 3) / 2.
  EXPECT_EQ(state.buffers.at("product").item<double>(), 4);
  EXPECT_EQ(state.buffers.at("count").item<int64_t>(), 4);  // 2 samples of the first thread in each step
}

TEST(Hogwild, AResumedRunOfOneThreadHasTheSameBits) {
  const FlatReplicaOptions options = options_of(1, 4, false, at::kDouble);
  const auto batch = [](int64_t step) { return batch_of(normal_samples(8, 6, step, at::kDouble)); };
  Alone whole(quadratic(6), options), first(quadratic(6), options), second(quadratic(6), options);
  for (int64_t step = 1; step <= 6; ++step) whole.step(step, kLr, batch(step));
  for (int64_t step = 1; step <= 3; ++step) first.step(step, kLr, batch(step));
  second.strategy.load_state(first.strategy.state());
  for (int64_t step = 4; step <= 6; ++step) second.step(step, kLr, batch(step));
  EXPECT_TRUE(torch::equal(second.weights(), whole.weights()));
}

TEST(Hogwild, AGradientThatIsNotFiniteEndsTheStep) {
  // The loss is 0. Its gradient is infinite.
  const ModelFactory root =
      model_of(2, 0, [](const at::Tensor& w, const at::Tensor& a) { return (w * a).sum(1).sqrt(); });
  Alone run(root, options_of(2, 1, false, at::kFloat));
  try {
    run.step(3, 0.1, batch_of(torch::ones({2, 2})));
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNumeric);
    EXPECT_THAT(error.what(),
                testing::AllOf(testing::HasSubstr("the gradient of w"), testing::HasSubstr("3")));
  }
  EXPECT_TRUE(torch::equal(run.weights(), torch::zeros({2})));  // that gradient was not applied
}

enum class Rounds { kLocalSgd, kEasgd, kParallelSgd };

constexpr int64_t kStepsPerRound = 2;

std::unique_ptr<ReplicaStrategy> make_rounds(Rounds exchange, const ModelFactory& model,
                                             const FlatReplicaOptions& options, Group& group,
                                             const Clock& clock) {
  UpdateRule rule = make_update_rule(plain_sgd());
  if (exchange == Rounds::kLocalSgd)
    return std::make_unique<LocalSgd>(model, std::move(rule), options, kStepsPerRound, group, clock);
  if (exchange == Rounds::kEasgd)
    return std::make_unique<Easgd>(model, std::move(rule), options, kStepsPerRound, 1.0, group, clock);
  return std::make_unique<ParallelSgd>(model, std::move(rule), options, kStepsPerRound, Combine::kAverage,
                                       Batch{}, group, clock);
}

// The agreed weights after `steps` steps of two ranks. changes(rank, step) is what a rank's threads add.
// Every number is a multiple of 1/16, so all sums are exact.
at::Tensor agreed_weights(Rounds exchange, int64_t size, int64_t steps,
                          const std::function<at::Tensor(int rank, int64_t step)>& changes) {
  std::vector<at::Tensor> x{torch::zeros({size}), torch::zeros({size})};
  at::Tensor center = torch::zeros({size});
  for (int64_t step = 1; step <= steps; ++step) {
    for (int rank = 0; rank < 2; ++rank) {
      at::Tensor& own = x[static_cast<size_t>(rank)];
      own = own + changes(rank, step);  // a new tensor, because the ranks may share one
    }
    if (step % kStepsPerRound != 0) continue;
    const at::Tensor old = center, mean = (x[0] + x[1]) / 2;
    center = mean;  // with easgd and β = 1: center + (mean − center)
    for (at::Tensor& w : x) w = exchange == Rounds::kEasgd ? w - (w - old) / 2 : mean;
  }
  return center;
}

// Two ranks of two threads: between rounds each rank adds its updates once, and a round combines the ranks.
TEST(Hogwild, RoundsCombineRanksWithThreads) {
  constexpr int kThreads = 2, kSteps = 4;
  constexpr int64_t kUpdates = 2, kSize = 6;
  const auto samples = [](int rank, int64_t step) {
    return integer_samples(kThreads * kUpdates, kSize, 10 * step + rank);
  };
  for (const Rounds exchange : {Rounds::kLocalSgd, Rounds::kEasgd, Rounds::kParallelSgd}) {
    const auto of_ranks = numbers_of_processes(2, [&](Group& group, Store&) {
      const SystemClock clock;
      FlatReplicaOptions options = options_of(kThreads, kUpdates, false, at::kFloat);
      options.rank = group.rank();
      const auto strategy = make_rounds(exchange, fixed_gradients(kSize), options, group, clock);
      for (int64_t step = 1; step <= kSteps; ++step) {
        strategy->begin_step({step, 1.0, false});
        strategy->forward_backward(batch_of(samples(group.rank(), step)));
        strategy->update();
      }
      strategy->consensus();
      const at::Tensor w = strategy->evaluated().parameters[0].tensor.detach().clone();
      Numbers found = {{"thread_updates", strategy->strategy_stats().at("thread_updates")}};
      for (int64_t d = 0; d < kSize; ++d) found["w" + std::to_string(d)] = w[d].item<double>();
      return found;
    });
    const at::Tensor expected = agreed_weights(exchange, kSize, kSteps, [&](int rank, int64_t step) {
      return -samples(rank, step).sum(0) / (kThreads * kUpdates);
    });
    for (const Numbers& rank : of_ranks) {
      EXPECT_EQ(rank.at("thread_updates"), kSteps * kThreads * kUpdates);
      for (int64_t d = 0; d < kSize; ++d)
        EXPECT_EQ(rank.at("w" + std::to_string(d)), expected[d].item<double>())
            << d << " of exchange " << static_cast<int>(exchange);
    }
  }
}

}  // namespace
}  // namespace starling
