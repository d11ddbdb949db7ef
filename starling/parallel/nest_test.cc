// Several inputs, outputs and targets, weighted losses and samples of different lengths, on real processes in
// fp64. Each update equals that of a plain libtorch loop with the whole batch. Ranks have different weights
// and pad their samples to different lengths.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>
#include <torch/nn/utils/rnn.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "starling/base/error.h"
#include "starling/comm/network/tcp_connections.h"
#include "starling/data/collate.h"
#include "starling/data/nest.h"
#include "starling/data/sample_partition.h"
#include "starling/data/tensor_source.h"
#include "starling/nn/blocks.h"
#include "starling/nn/layers/linear.h"
#include "starling/parallel/all_reduce/all_reduce.h"
#include "starling/parallel/all_reduce/mean_gradient.h"
#include "starling/parallel/central.h"
#include "starling/parallel/compressed_sgd.h"
#include "starling/parallel/hybrid.h"
#include "starling/parallel/local_sgd.h"
#include "starling/parallel/parameter_server.h"
#include "starling/parallel/pipeline/pipeline.h"
#include "starling/parallel/replica/batch_parts.h"
#include "starling/parallel/replica/sample_shuffle.h"
#include "starling/parallel/zero/zero.h"
#include "starling/server/serve.h"
#include "starling/testing/forked_ranks.h"
#include "starling/testing/join_group.h"
#include "starling/torch_testing/tensor_difference.h"
#include "starling/torch_testing/torch_group_processes.h"

namespace starling::nest_tests {
namespace {

using ::testing::HasSubstr;
using Named = std::map<std::string, at::Tensor>;

constexpr int64_t kBatch = 12;
constexpr double kLr = 0.05;
constexpr int kSteps = 4;
constexpr double kEqual = 1e-10;

// A model with its data. The samples [first, first + count) of a step's batch are those of one rank.
struct Task {
  ModelFactory factory;
  std::function<Batch(int64_t step, int64_t first, int64_t count)> batch;
};

// Three inputs (real numbers, an index, weights), two outputs, three targets, a frozen parameter and one that
// no output depends on.
struct Extra : torch::nn::Module {
  at::Tensor frozen, unused;

  Extra() {
    frozen = register_parameter("frozen", torch::rand({6}), /*requires_grad=*/false);
    unused = register_parameter("unused", torch::rand({8}));
  }
};

struct TwoHeads : torch::nn::Module {
  torch::nn::Embedding names{nullptr};
  torch::nn::Linear first{nullptr}, second{nullptr};
  std::shared_ptr<Extra> extra;

  TwoHeads() {
    names = register_module("names", torch::nn::Embedding(7, 4));
    first = register_module("first", torch::nn::Linear(5 + 4, 6));
    second = register_module("second", torch::nn::Linear(6, 3));
    extra = register_module("extra", std::make_shared<Extra>());
  }
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& x, const at::Tensor& name,
                                             const at::Tensor& scale) {
    const at::Tensor h = first(torch::cat({x, names(name)}, 1)).tanh() * extra->frozen;
    return {h * scale, second(h)};
  }
};

struct Heads {
  at::Tensor values, logits;
};
struct Wanted {
  at::Tensor values, mask, classes;
};

WeightedLoss masked(const Heads& heads, const Wanted& wanted) {
  const at::Tensor errors = (heads.values - wanted.values).square() * wanted.mask;
  const at::Tensor entropy =
      torch::nll_loss(heads.logits.log_softmax(1), wanted.classes, {}, at::Reduction::Sum);
  return {errors.sum() + entropy, wanted.mask.sum()};
}

// Returns a user's loss function as starling::Loss (run/run.h) wraps it.
template <typename F>
ModelLoss loss_of(F loss) {
  return [loss](const Tensors& outputs, const Tensors& targets) mutable {
    return call_on_batch(loss, outputs, targets, "the loss");
  };
}

template <typename Net>
Model model_of(std::shared_ptr<Net> net, ModelLoss loss) {
  return {net, [net](const Tensors& inputs) { return call_forward(*net, inputs); }, std::move(loss)};
}

Task two_heads(ModelLoss loss = loss_of(masked)) {
  return {[loss] { return model_of(std::make_shared<TwoHeads>(), loss); },
          [](int64_t step, int64_t first, int64_t count) {
            torch::manual_seed(100 + step);
            const auto real = [](int64_t n) { return torch::randn({kBatch, n}, torch::kDouble); };
            at::Tensor mask = torch::rand({kBatch, 6}, torch::kDouble);
            // The first samples of the second step have no weight: with four ranks, rank 0 has none at all.
            if (step == 2) mask.narrow(0, 0, 3).zero_();
            const Batch whole = make_batch({real(5), torch::randint(7, {kBatch}), real(6)},
                                           {real(6), mask, torch::randint(3, {kBatch})});
            return whole.part(first, count);
          }};
}

// Reads packed sequences of different lengths, attends to their words, and names each of them.
struct Tagger : torch::nn::Module {
  torch::nn::Embedding words{nullptr};
  torch::nn::LSTM lstm{nullptr};
  torch::nn::Linear query{nullptr}, tag{nullptr};

  Tagger() {
    words = register_module("words", torch::nn::Embedding(11, 5));
    lstm = register_module(
        "lstm", torch::nn::LSTM(torch::nn::LSTMOptions(5, 6).batch_first(true).bidirectional(true)));
    query = register_module("query", torch::nn::Linear(12, 12));
    tag = register_module("tag", torch::nn::Linear(12, 4));
  }
  at::Tensor forward(const at::Tensor& ids, const at::Tensor& lengths) {
    namespace rnn = torch::nn::utils::rnn;
    const auto packed =
        rnn::pack_padded_sequence(words(ids), lengths, /*batch_first=*/true, /*enforce_sorted=*/false);
    const auto read = std::get<0>(lstm->forward_with_packed_input(packed));
    const at::Tensor h = std::get<0>(rnn::pad_packed_sequence(read, /*batch_first=*/true, /*padding_value=*/0,
                                                              /*total_length=*/ids.size(1)));
    const at::Tensor hidden = torch::arange(h.size(1)).unsqueeze(0) >= lengths.unsqueeze(1);
    const at::Tensor scores = query(h).matmul(h.transpose(1, 2)).masked_fill(hidden.unsqueeze(1), -1e300);
    return tag(h + scores.softmax(2).matmul(h));
  }
};

constexpr int64_t kIgnored = -100;

// The mean over all words of all ranks.
WeightedLoss per_word(const at::Tensor& logits, const at::Tensor& tags) {
  const at::Tensor sum =
      torch::nll_loss(logits.flatten(0, 1).log_softmax(1), tags.flatten(), {}, at::Reduction::Sum, kIgnored);
  return {sum, tags.ne(kIgnored).sum()};
}

Task tagger() {
  return {
      [] { return model_of(std::make_shared<Tagger>(), loss_of(per_word)); },
      [](int64_t step, int64_t first, int64_t count) {
        torch::manual_seed(200 + step);
        std::vector<Sample> all;
        for (int64_t i = 0; i < kBatch; ++i) {
          const int64_t length = 1 + (5 * i + step) % 9;
          all.push_back({{torch::randint(11, {length})}, {torch::randint(4, {length})}});
        }
        return padded({.input = 0, .target = kIgnored})({all.begin() + first, all.begin() + first + count});
      }};
}

// The parameters after each step, and the losses.
struct Course {
  std::vector<Named> parameters;  // [0]: before the first step
  std::vector<double> losses;
};

Named parameters_of(const torch::nn::Module& module) {
  Named all;
  for (const auto& p : module.named_parameters()) all[p.key()] = p.value().detach().clone();
  return all;
}

// A plain libtorch loop with the whole batch.
Course one_process(const Task& task, const std::string& optimizer) {
  const Model model = make_replica(task.factory, at::kDouble, 0).model;
  std::unique_ptr<torch::optim::Optimizer> update;
  const auto parameters = model.module->parameters();
  if (optimizer == "adam") {
    update = std::make_unique<torch::optim::Adam>(parameters, torch::optim::AdamOptions(kLr));
  } else {
    update = std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(kLr).momentum(0.9));
  }
  Course course{{parameters_of(*model.module)}, {}};
  for (int64_t step = 1; step <= kSteps; ++step) {
    const Batch whole = task.batch(step, 0, kBatch);
    update->zero_grad();
    const WeightedLoss loss = model.loss.of(model.forward(whole.inputs()), whole.targets());
    const at::Tensor mean = loss.sum / loss.weight;
    mean.backward();
    update->step();
    course.parameters.push_back(parameters_of(*model.module));
    course.losses.push_back(mean.item<double>());
  }
  return course;
}

OptimizerSpec optimizer_spec(const std::string& name) {
  OptimizerSpec spec;
  spec.name = name;
  return spec;
}

FlatReplicaOptions flat(const Group& group) {
  FlatReplicaOptions options;
  options.master = options.working = at::kDouble;
  options.rank = group.rank();
  return options;
}

Course run(Strategy& strategy, const Group& group, const Task& task) {
  Course course;
  const auto show = [&] {
    strategy.consensus();
    course.parameters.push_back(parameters_of(*strategy.evaluated().model.module));
  };
  const int64_t each = kBatch / group.size();
  show();
  for (int64_t step = 1; step <= kSteps; ++step) {
    strategy.begin_step({step, kLr, false});
    strategy.forward_backward(task.batch(step, each * group.rank(), each));
    course.losses.push_back(strategy.update().loss);
    show();
  }
  return course;
}

// Returns the largest difference of an update, in the 2-norm of a tensor, and of a loss.
Numbers differences(const Course& actual, const Course& expected) {
  Numbers found = {{"update", 0}, {"loss", 0}};
  for (int step = 1; step <= kSteps; ++step) {
    Named did = actual.parameters.at(step), should = expected.parameters.at(step);
    for (auto& [name, value] : did) value = value - actual.parameters[step - 1].at(name);
    for (auto& [name, value] : should) value = value - expected.parameters[step - 1].at(name);
    found["update"] = std::max(found["update"], largest_difference(did, should).difference);
    const double loss = expected.losses.at(step - 1);
    found["loss"] = std::max(found["loss"], std::fabs(actual.losses.at(step - 1) - loss) / loss);
  }
  return found;
}

using Make = std::function<std::unique_ptr<Strategy>(const Task&, UpdateRule, Group&, const Clock&)>;

void expect_equal(const Task& task, const Make& make, const std::string& what,
                  const std::vector<int>& sizes = {1, 2, 3, 4}, const std::string& optimizer = "sgd") {
  const Course expected = one_process(task, optimizer);
  for (const int size : sizes) {
    const Numbers found = largest_of(numbers_of_processes(size, [&](Group& group, Store&) {
      const SystemClock clock;
      const auto strategy = make(task, make_update_rule(optimizer_spec(optimizer)), group, clock);
      return differences(run(*strategy, group, task), expected);
    }));
    EXPECT_LT(found.at("update"), kEqual) << what << ", " << size << " ranks";
    EXPECT_LT(found.at("loss"), kEqual) << what << ", " << size << " ranks";
  }
}

Make all_reduce_with(const std::function<void(AllReduceOptions&)>& change = [](AllReduceOptions&) {}) {
  return [change](const Task& task, UpdateRule rule, Group& group, const Clock& clock) {
    AllReduceOptions options;
    options.master = options.working = at::kDouble;
    options.bucket_bytes = 400;
    change(options);
    return std::make_unique<AllReduce>(task.factory, std::move(rule), options, group, clock);
  };
}

TEST(Nests, AllReduceEqualsOneProcess) {
  expect_equal(two_heads(), all_reduce_with(), "two heads");
  expect_equal(two_heads(), all_reduce_with(), "two heads, adam", {3}, "adam");
  expect_equal(tagger(), all_reduce_with(), "tagger");
  const auto replicated = [](AllReduceOptions& options) { options.share = OptimizerShare::kReplicated; };
  expect_equal(tagger(), all_reduce_with(replicated), "replicated", {2});
  const auto threads = [](AllReduceOptions& options) { options.threads = 3; };
  expect_equal(two_heads(), all_reduce_with(threads), "threads", {1, 2, 4});
  expect_equal(tagger(), all_reduce_with(threads), "threads of the tagger", {1, 2});
}

// The form of all-reduce that exchanges whole gradients, for optimizers of the user's program.
TEST(Nests, MeanGradientsEqualOneProcess) {
  const Make make = [](const Task& task, UpdateRule rule, Group& group, const Clock& clock) {
    return std::make_unique<MeanGradient>(task.factory, std::move(rule), flat(group), group, clock);
  };
  expect_equal(two_heads(), make, "two heads", {1, 4});
  expect_equal(tagger(), make, "tagger", {2, 3});
}

Make zero_of(int stage, int64_t parts = 1) {
  return [stage, parts](const Task& task, UpdateRule rule, Group& group, const Clock& clock) {
    ZeroOptions options;
    options.stage = stage;
    options.replica = flat(group);
    options.replica.accumulate = parts;
    options.bucket_bytes = 400;
    return std::make_unique<Zero>(task.factory, std::move(rule), options, group, clock);
  };
}

// A model in blocks: the first takes all inputs, and the last returns both outputs.
Task in_blocks(ModelLoss loss) {
  Task task = two_heads(loss);
  task.factory = [loss] {
    const auto net = std::make_shared<TwoHeads>();
    Model model = model_of(net, loss);
    const Block first{
        "first", {net->names.ptr(), net->first.ptr(), net->extra}, [net](const Tensors& in) -> Tensors {
          const at::Tensor h = net->first(torch::cat({in.at(0), net->names(in.at(1))}, 1)).tanh();
          return {h * net->extra->frozen, in.at(2)};
        }};
    const Block second{"second", {net->second.ptr()}, [net](const Tensors& h) -> Tensors {
                         return {h.at(0) * h.at(1), net->second(h.at(0))};
                       }};
    model.blocks = {first, second};
    return model;
  };
  return task;
}

at::Tensor unmasked(const Heads& heads, const Wanted& wanted) {
  return torch::mse_loss(heads.values, wanted.values) + cross_entropy(heads.logits, wanted.classes);
}

FlatReplicaOptions in_parts(const Group& group) {
  FlatReplicaOptions options = flat(group);
  options.accumulate = 3;
  return options;
}

// The batch is computed in parts. Some have one sample, and some have no weight.
TEST(Nests, PartsOfABatchEqualOneProcess) {
  const auto parts = [](AllReduceOptions& options) { options.accumulate = 3; };
  for (const Task& task : {two_heads(), two_heads(loss_of(unmasked)), tagger()}) {
    expect_equal(task, all_reduce_with(parts), "all-reduce");
    for (const bool sharded : {false, true}) {
      const Make central = [sharded](const Task& task, UpdateRule rule, Group& group, const Clock& clock) {
        return std::make_unique<Central>(task.factory, std::move(rule), in_parts(group), sharded, group,
                                         clock);
      };
      expect_equal(task, central, "central", {1, 3});
    }
    for (const int stage : {1, 2}) expect_equal(task, zero_of(stage, 3), "ZeRO", {1, 3, 4}, "adam");
    const Make whole = [](const Task& task, UpdateRule rule, Group& group, const Clock& clock) {
      return std::make_unique<MeanGradient>(task.factory, std::move(rule), in_parts(group), group, clock);
    };
    expect_equal(task, whole, "mean gradient", {1, 3, 4});
  }
  const auto threads = [](AllReduceOptions& options) {
    options.threads = 2;
    options.accumulate = 2;
  };
  expect_equal(two_heads(), all_reduce_with(threads), "threads", {1, 3});
  expect_equal(in_blocks(loss_of(masked)), zero_of(3, 3), "ZeRO 3", {1, 2, 4});
  expect_equal(in_blocks(loss_of(unmasked)), zero_of(3, 2), "ZeRO 3 without weights", {3});
}

// What the forward function of a model has computed.
struct Computed {
  int64_t passes = 0, largest = 0;  // the largest batch
};

Computed computed_by(const Make& make, const Task& task) {
  const auto all = numbers_of_processes(1, [&](Group& group, Store&) {
    const auto computed = std::make_shared<Computed>();
    Task counted = task;
    counted.factory = [&task, computed] {
      Model model = task.factory();
      const auto count = [computed](const Tensors& inputs) {
        ++computed->passes;
        computed->largest = std::max(computed->largest, inputs.at(0).size(0));
      };
      model.forward = [count, forward = model.forward](const Tensors& inputs) {
        count(inputs);
        return forward(inputs);
      };
      if (!model.blocks.empty())
        model.blocks[0].forward = [count, forward = model.blocks[0].forward](const Tensors& inputs) {
          count(inputs);
          return forward(inputs);
        };
      return model;
    };
    const SystemClock clock;
    run(*make(counted, make_update_rule({}), group, clock), group, counted);
    return Numbers{{"passes", static_cast<double>(computed->passes)},
                   {"largest", static_cast<double>(computed->largest)}};
  });
  return {static_cast<int64_t>(all[0].at("passes")), static_cast<int64_t>(all[0].at("largest"))};
}

TEST(Nests, PartsOfABatchAreComputedOneAfterAnother) {
  const auto parts = [](AllReduceOptions& options) { options.accumulate = 3; };
  const Make central = [](const Task& task, UpdateRule rule, Group& group, const Clock& clock) {
    return std::make_unique<Central>(task.factory, std::move(rule), in_parts(group), false, group, clock);
  };
  const Make whole = [](const Task& task, UpdateRule rule, Group& group, const Clock& clock) {
    return std::make_unique<MeanGradient>(task.factory, std::move(rule), in_parts(group), group, clock);
  };
  const Task task = in_blocks(loss_of(masked));
  for (const Make& make :
       {all_reduce_with(parts), central, whole, zero_of(1, 3), zero_of(2, 3), zero_of(3, 3)}) {
    const Computed computed = computed_by(make, task);
    EXPECT_EQ(computed.passes, 3 * kSteps);
    EXPECT_EQ(computed.largest, kBatch / 3);
  }
}

TEST(Nests, ABatchIsCutIntoPartsOfNearlyEqualSize) {
  const Batch batch = make_batch({torch::arange(7)}, {torch::arange(7)});
  const auto sizes = [&](int64_t samples, int64_t count) {
    std::vector<int64_t> all;
    for (const Batch& part : cut_batch(batch.part(0, samples), count)) all.push_back(part.size());
    return all;
  };
  EXPECT_THAT(sizes(7, 3), testing::ElementsAre(2, 2, 3));
  EXPECT_THAT(sizes(2, 5), testing::ElementsAre(1, 1));
  EXPECT_THAT(sizes(6, 1), testing::ElementsAre(6));
  EXPECT_EQ(cut_batch(batch, 3)[2].input.sum().item<int64_t>(), 4 + 5 + 6);
}

TEST(Nests, AllReduceBetweenHostsEqualsOneProcess) {
  const Task task = tagger();
  const Course expected = one_process(task, "sgd");
  const JobIdentity identity{make_job_key(), "nests"};
  const Numbers found = largest_of(numbers_of_processes(3, [&](Group& world, Store& store) {
    GroupSetup setup;
    setup.rank = world.rank();
    setup.size = world.size();
    setup.name = "hosts";
    setup.host_id = setup.host_name = "host-" + std::to_string(world.rank() / 2);
    setup.connect = tcp_connector("127.0.0.1", identity);
    const auto group = make_group(store, setup);
    const SystemClock clock;
    const auto strategy = all_reduce_with()(task, make_update_rule({}), *group, clock);
    return differences(run(*strategy, *group, task), expected);
  }));
  EXPECT_LT(found.at("update"), kEqual);
  EXPECT_LT(found.at("loss"), kEqual);
}

// A thread that fails before it has told its weight does not let the other threads wait.
TEST(Nests, AThreadThatFailsEndsTheStep) {
  Task task = two_heads();
  task.batch = [batch = task.batch](int64_t step, int64_t first, int64_t count) {
    Batch bad = batch(step, first, count);
    bad.more_inputs[0].narrow(0, 4, 1).fill_(100);  // no such name
    return bad;
  };
  const auto texts = numbers_of_processes(1, [&](Group& group, Store&) {
    const SystemClock clock;
    const auto strategy = all_reduce_with([](AllReduceOptions& options) { options.threads = 3; })(
        task, make_update_rule({}), group, clock);
    try {
      run(*strategy, group, task);
    } catch (const std::exception& error) {
      return Numbers{{"of_torch", std::string(error.what()).find("index out of range") != std::string::npos}};
    }
    return Numbers{{"of_torch", -1}};
  });
  EXPECT_EQ(texts[0].at("of_torch"), 1);
}

TEST(Nests, CentralEqualsOneProcess) {
  for (const bool sharded : {false, true}) {
    const Make make = [sharded](const Task& task, UpdateRule rule, Group& group, const Clock& clock) {
      return std::make_unique<Central>(task.factory, std::move(rule), flat(group), sharded, group, clock);
    };
    expect_equal(two_heads(), make, "central", {1, 4});
    expect_equal(tagger(), make, "central", {3});
  }
}

TEST(Nests, ZeroEqualsOneProcess) {
  for (const int stage : {1, 2}) {
    expect_equal(two_heads(), zero_of(stage), "ZeRO", {1, 4}, "adam");
    expect_equal(tagger(), zero_of(stage), "ZeRO", {2, 3});
  }
}

TEST(Nests, ZeroWithParametersInBlocksEqualsOneProcess) {
  expect_equal(in_blocks(loss_of(masked)), zero_of(3), "ZeRO 3", {1, 2, 4});
  expect_equal(in_blocks(loss_of(unmasked)), zero_of(3), "ZeRO 3 without weights", {3});
}

Make pipeline(int micro_batches) {
  return [micro_batches](const Task& task, UpdateRule rule, Group& group, const Clock& clock) {
    PipelineOptions options;
    options.schedule = make_schedule("1f1b", group.size(), 1, micro_batches);
    options.master = options.working = at::kDouble;
    return std::make_unique<Pipeline>(task.factory, std::move(rule), options, group, clock);
  };
}

// Both stages read all inputs and targets of the whole batch. `unmasked` is a mean of micro-batches of equal
// size.
TEST(Nests, StagesCarrySeveralTensors) {
  Task task = in_blocks(loss_of(unmasked));
  const Course expected = one_process(task, "sgd");
  const Numbers found = largest_of(numbers_of_processes(2, [&](Group& group, Store&) {
    const SystemClock clock;
    const auto strategy = pipeline(4)(task, make_update_rule({}), group, clock);
    Task whole = task;
    whole.batch = [&](int64_t step, int64_t, int64_t) { return task.batch(step, 0, kBatch); };
    return differences(run(*strategy, group, whole), expected);
  }));
  EXPECT_LT(found.at("update"), kEqual);
  EXPECT_LT(found.at("loss"), kEqual);
}

TEST(Nests, StagesRefuseAWeightedLoss) {
  const auto texts = numbers_of_processes(2, [&](Group& group, Store&) {
    const SystemClock clock;
    try {
      pipeline(2)(in_blocks(loss_of(masked)), make_update_rule({}), group, clock);
    } catch (const ConfigError& error) {
      return Numbers{{"refused", std::string(error.what()).find("WeightedLoss") != std::string::npos}};
    }
    return Numbers{{"refused", 0}};
  });
  for (const Numbers& rank : texts) EXPECT_EQ(rank.at("refused"), 1);
}

// Two inputs into model-parallel layers.
struct Wide : torch::nn::Module {
  starling::Linear first{nullptr}, second{nullptr};
  Wide() {
    first = register_module("first", starling::Linear(8, 8));
    second = register_module("second", starling::Linear(8, 3));
  }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& y) {
    return second(first(torch::cat({x, y}, 1)).tanh());
  }
};

WeightedLoss by_weight(const at::Tensor& output, const at::Tensor& target, const at::Tensor& weight) {
  return {((output - target).square().sum(1) * weight).sum(), weight.sum()};
}

Task wide() {
  return {[] { return model_of(std::make_shared<Wide>(), loss_of(by_weight)); },
          [](int64_t step, int64_t first, int64_t count) {
            torch::manual_seed(300 + step);
            const auto real = [](int64_t n) { return torch::randn({kBatch, n}, torch::kDouble); };
            return make_batch({real(5), real(3)}, {real(3), torch::rand({kBatch}, torch::kDouble)})
                .part(first, count);
          }};
}

Make hybrid_of(const std::vector<std::string>& layers) {
  return [layers](const Task& task, UpdateRule rule, Group& group, const Clock& clock) {
    return std::make_unique<Hybrid>(task.factory, std::move(rule), HybridOptions{layers, flat(group)}, group,
                                    clock);
  };
}

TEST(Nests, HybridEqualsOneProcess) {
  expect_equal(wide(), hybrid_of({"first"}), "hybrid", {1, 2, 4});
}

TEST(Nests, HybridRefusesSamplesOfSeveralShapes) {
  const auto texts = numbers_of_processes(2, [&](Group& group, Store&) {
    const SystemClock clock;
    Task task = wide();
    task.batch = [&](int64_t, int64_t, int64_t) {
      return make_batch({torch::zeros({2, 1 + group.rank()}), torch::zeros({2, 3})},
                        {torch::zeros({2, 3}), torch::ones({2})});
    };
    const auto strategy = hybrid_of({"first"})(task, make_update_rule({}), group, clock);
    try {
      run(*strategy, group, task);
    } catch (const ConfigError& error) {
      return Numbers{
          {"refused", std::string(error.what()).find("samples of one shape") != std::string::npos}};
    }
    return Numbers{{"refused", 0}};
  });
  for (const Numbers& rank : texts) EXPECT_EQ(rank.at("refused"), 1);
}

// Compressed gradients are fp32, so the updates are equal up to the codec.
TEST(Nests, CompressedGradientsAreWeighted) {
  const Task task = wide();
  const Course expected = one_process(task, "sgd");
  const Numbers found = largest_of(numbers_of_processes(3, [&](Group& group, Store&) {
    const SystemClock clock;
    FlatReplicaOptions options;
    options.rank = group.rank();
    Task single = task;
    single.batch = [&](int64_t step, int64_t first, int64_t count) {
      Batch batch = task.batch(step, first, count);
      batch.target = batch.target.to(at::kFloat);
      batch.more_targets[0] = batch.more_targets[0].to(at::kFloat);
      return batch;
    };
    CompressedSgd strategy(task.factory, make_update_rule({}), options, parse_codec("fp16"), group, clock);
    Course course = run(strategy, group, single);
    for (Named& parameters : course.parameters) {
      for (auto& [name, value] : parameters) value = value.to(at::kDouble);
    }
    return differences(course, expected);
  }));
  EXPECT_LT(found.at("update"), 5e-3);
  EXPECT_LT(found.at("loss"), 1e-4);
}

// Ranks that train by themselves minimize the mean over their own weights.
TEST(Nests, LocalSgdTrainsOnTheMeanOfEachRank) {
  constexpr int kRanks = 2;
  const Task task = two_heads();
  std::vector<Model> models;
  for (int k = 0; k < kRanks; ++k) models.push_back(make_replica(task.factory, at::kDouble, 0).model);
  Course expected{{parameters_of(*models[0].module)}, {}};
  for (int64_t step = 1; step <= kSteps; ++step) {
    const at::NoGradGuard no_grad;
    Named mean;
    for (int k = 0; k < kRanks; ++k) {
      const Batch own = task.batch(step, 6 * k, 6);
      {
        const at::AutoGradMode grad(true);
        models[k].module->zero_grad();
        const WeightedLoss loss = models[k].loss.of(models[k].forward(own.inputs()), own.targets());
        (loss.sum / loss.weight).backward();
      }
      for (auto& p : models[k].module->named_parameters()) {
        if (!p.value().requires_grad()) {
          mean[p.key()] = p.value().detach().clone();
          continue;
        }
        at::Tensor value = p.value().detach().clone();
        if (p.value().grad().defined()) value -= kLr * p.value().grad();
        mean[p.key()] = mean.contains(p.key()) ? mean[p.key()] + value / kRanks : value / kRanks;
      }
    }
    for (Model& model : models) {
      for (auto& p : model.module->named_parameters()) p.value().copy_(mean.at(p.key()));
    }
    expected.parameters.push_back(mean);
    expected.losses.push_back(1);
  }
  const Numbers found = largest_of(numbers_of_processes(kRanks, [&](Group& group, Store&) {
    const SystemClock clock;
    OptimizerSpec plain;
    plain.momentum = 0;
    LocalSgd strategy(task.factory, make_update_rule(plain), flat(group), 1, group, clock);
    return differences(run(strategy, group, task), expected);
  }));
  EXPECT_LT(found.at("update"), kEqual);
}

// The shuffle of parallel SGD moves whole samples. Ranks whose samples differ in shape refuse it.
TEST(Nests, TheShuffleMovesAllTensors) {
  const auto found = numbers_of_processes(3, [](Group& group, Store&) {
    const SystemClock clock;
    const at::Tensor x = torch::arange(12 * group.rank(), 12 * (group.rank() + 1));
    const auto source =
        tensor_source({x, x.unsqueeze(1) * torch::tensor({2, 3})}, {x * 5, x.to(at::kDouble) * 7});
    const SampleShuffle shuffle = shuffle_samples(group, clock, *source, 1);
    std::vector<int64_t> all(shuffle.samples->size());
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int64_t>(i);
    const Batch batch = shuffle.samples->read(all, 0);
    const bool right = at::equal(batch.more_inputs.at(0), batch.input.unsqueeze(1) * torch::tensor({2, 3})) &&
                       at::equal(batch.target, batch.input * 5) &&
                       at::equal(batch.more_targets.at(0), batch.input.to(at::kDouble) * 7);
    Numbers numbers = {{"right", right}, {"sum", batch.input.sum().item<double>()}, {"refused", 0}};
    try {
      shuffle_samples(group, clock, *tensor_source(torch::zeros({4, 1 + group.rank()}), torch::zeros({4})),
                      1);
    } catch (const ConfigError&) {
      numbers["refused"] = 1;
    }
    return numbers;
  });
  double sum = 0;
  for (const Numbers& rank : found) {
    EXPECT_EQ(rank.at("right"), 1);
    EXPECT_EQ(rank.at("refused"), 1);
    sum += rank.at("sum");
  }
  EXPECT_EQ(sum, 35 * 36 / 2);
}

// A sum that is 0 where its weight is 0. A server does not count the gradient of a worker without weight.
WeightedLoss all_masked(const Heads& heads, const Wanted& wanted) {
  const at::Tensor errors = ((heads.values - wanted.values).square() * wanted.mask).sum(1);
  const at::Tensor entropy =
      torch::nll_loss(heads.logits.log_softmax(1), wanted.classes, {}, at::Reduction::None);
  return {(errors + entropy * wanted.mask.select(1, 0)).sum(), wanted.mask.sum()};
}

// Synchronous servers weight the gradients of their workers.
TEST(Nests, ASynchronousServerEqualsOneProcess) {
  for (const Task& task : {two_heads(loss_of(all_masked)), tagger()}) {
    const Course expected = one_process(task, "sgd");
    for (const int workers : {1, 2, 3, 4}) {
      ParameterServerOptions options;
      options.server.workers = workers;
      options.server.staleness = 0;
      options.replica.master = options.replica.working = at::kDouble;
      ServerRendezvous rendezvous;
      rendezvous.workers = workers;
      rendezvous.servers = 2;
      rendezvous.server_timeout = std::chrono::seconds(30);
      ForkedRanks ranks(workers + 2, [&](int rank, Store& store) {
        at::set_num_threads(1);
        if (rank >= workers) {
          serve_shard(store, rendezvous, rank - workers, options.server, DataType::kFp64);
          return;
        }
        const SystemClock clock;
        ParameterServerOptions own = options;
        own.loads = rank == 0;
        own.replica.rank = rank;
        ParameterServer strategy(task.factory, own, store, rendezvous, rank, nullptr, clock);
        GroupSetup setup;
        setup.rank = rank, setup.size = workers, setup.name = "workers";
        const auto group = make_group(store, setup);  // tells run() which samples are this worker's
        const Numbers found = differences(run(strategy, *group, task), expected);
        store.put("update/" + std::to_string(rank), std::to_string(found.at("update") / kEqual));
        store.put("loss/" + std::to_string(rank), std::to_string(found.at("loss") / kEqual));
      });
      ranks.wait_all();
      for (int rank = 0; rank < workers; ++rank) {
        EXPECT_LT(std::stod(ranks.store().try_get("update/" + std::to_string(rank)).value()), 1) << workers;
        EXPECT_LT(std::stod(ranks.store().try_get("loss/" + std::to_string(rank)).value()), 1) << workers;
      }
    }
  }
}

TEST(Nests, OnlyInputsThatTheModelAsksForAreConverted) {
  Model model = two_heads().factory();
  Batch batch = two_heads().batch(1, 0, 4);
  batch.input.fill_(257);
  Tensors inputs = inputs_of(model, batch, at::kBFloat16, false);
  EXPECT_EQ(inputs[0][0][0].item<double>(), 256);
  EXPECT_EQ(inputs[1].scalar_type(), at::kLong);
  EXPECT_EQ(inputs[2].scalar_type(), at::kBFloat16);
  model.exact_inputs = {0};
  inputs = inputs_of(model, batch, at::kBFloat16, false);
  EXPECT_EQ(inputs[0].scalar_type(), at::kDouble);
  EXPECT_EQ(inputs[0][0][0].item<double>(), 257);
}

TEST(Nests, AWeightOfZeroLeavesTheSum) {
  const at::Tensor sum = torch::scalar_tensor(0.0, torch::kDouble);
  EXPECT_EQ(WeightedLoss(sum, 0).mean().item<double>(), 0);
  EXPECT_EQ(WeightedLoss(sum + 3, torch::tensor(2)).mean().item<double>(), 1.5);
  EXPECT_THROW(WeightedLoss(sum, -1.0), c10::Error);
  EXPECT_THROW(WeightedLoss(sum, std::nan("")), c10::Error);
}

TEST(Nests, AModelOfOneTensorSaysSo) {
  const Model model{nullptr, [](const at::Tensor& x) { return x; },
                    [](const at::Tensor& a, const at::Tensor& b) { return (a - b).sum(); }};
  const at::Tensor x = torch::ones({2});
  const auto fault = [](const auto& f) {
    try {
      f();
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(fault([&] { model.forward(Tensors{x, x}); }), HasSubstr("the data set has 2 inputs"));
  EXPECT_THAT(fault([&] { model.loss.of({x}, {x, x}); }), HasSubstr("the data set 2 target(s)"));
  EXPECT_FALSE(ModelLoss(nullptr));
  EXPECT_FALSE(ModelLoss(std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>()));
}

}  // namespace
}  // namespace starling::nest_tests
