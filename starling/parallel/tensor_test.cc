// Tensor parallelism and the hybrid of data and model parallelism on real processes in fp64. The tests check
// the updates against one process with the whole batch, the whole tensors in checkpoints, and the bytes
// against the formulas.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>

#include "starling/base/error.h"
#include "starling/parallel/admm.h"
#include "starling/parallel/all_reduce/all_reduce.h"
#include "starling/parallel/central.h"
#include "starling/parallel/gossip.h"
#include "starling/parallel/hybrid.h"
#include "starling/parallel/local_sgd.h"
#include "starling/parallel/one_process_test_training.h"
#include "starling/parallel/parallel_sgd.h"
#include "starling/parallel/tensor_parallel.h"
#include "starling/parallel/zero/zero.h"
#include "starling/testing/join_group.h"
#include "starling/torch_testing/tensor_difference.h"
#include "starling/torch_testing/torch_group_processes.h"

namespace starling {
namespace {

using Named = std::map<std::string, at::Tensor>;

constexpr int64_t kBatch = 8;
constexpr double kLr = 0.05;
constexpr int kSteps = 4;

// What is trained, and how.
struct Task {
  ModelFactory factory;
  bool text = false;
  std::vector<int64_t> sample;
  int64_t classes = 0;
  std::string optimizer = "sgd";
  double clip = 0;

  Batch batch(int64_t step) const {
    torch::manual_seed(100 + step);
    std::vector<int64_t> shape = sample;
    shape.insert(shape.begin(), kBatch);
    if (text) return {torch::randint(classes, shape), torch::randint(classes, shape)};
    return {torch::randn(shape, torch::kDouble), torch::randint(classes, {kBatch})};
  }
  // One of `parts` equal parts of the batch.
  Batch part(int64_t step, int index, int parts) const {
    const Batch whole = batch(step);
    const int64_t n = kBatch / parts;
    return {whole.input.narrow(0, index * n, n), whole.target.narrow(0, index * n, n)};
  }
  OptimizerSpec optimizer_spec() const {
    OptimizerSpec spec;
    spec.name = optimizer;
    return spec;
  }
  UpdateRule rule() const { return make_update_rule(optimizer_spec()); }
  FlatReplicaOptions flat() const {
    FlatReplicaOptions options;
    options.master = options.working = at::kDouble;
    options.clip_norm = clip;
    return options;
  }
};

Task mlp() {
  ModelSpec spec;
  spec.name = "mlp";
  spec.widths = {12, 10, 8, 6};
  return {zoo_model(spec, {{12}, 6, false}), false, {12}, 6};
}

Task lenet() {
  ModelSpec spec;
  spec.name = "lenet5";
  return {zoo_model(spec, {{1, 16, 16}, 10, false}), false, {1, 16, 16}, 10};
}

Task gpt() {
  ModelSpec spec;
  spec.name = "gpt";
  spec.layers = 2;
  spec.width = 24;
  spec.heads = 2;
  spec.tokens = 5;
  return {zoo_model(spec, {{5}, 11, true}), true, {5}, 11};
}

Task llama(bool tied) {
  ModelSpec spec;
  spec.name = "llama";
  spec.layers = 2;
  spec.width = 24;
  spec.heads = 4;
  spec.kv_heads = 2;
  spec.tokens = 5;
  spec.tied = tied;
  return {zoo_model(spec, {{5}, 11, true}), true, {5}, 11};
}

Task with(Task task, const std::string& optimizer, double clip) {
  task.optimizer = optimizer;
  task.clip = clip;
  return task;
}

Named one_process(const Task& task, int steps) {
  return train_one_process(task.factory, [&](int64_t step) { return task.batch(step); },
                           task.optimizer_spec(), steps, {.lr = kLr, .clip = task.clip});
}

// A rank of a replica × tensor mesh, whose inner axis is tensor, with its groups.
struct Here {
  Here(Group& world, int replicas, int slices, Store& store) : rank(world.rank()), world(world) {
    std::vector<int> row, column;
    for (int t = 0; t < slices; ++t) row.push_back(rank / slices * slices + t);
    for (int r = 0; r < replicas; ++r) column.push_back(r * slices + rank % slices);
    tensor = join_subset(store, world, "tensor", row);
    replica = join_subset(store, world, "replica", column);
  }
  int rank;
  SystemClock clock;
  Group& world;
  std::unique_ptr<Group> tensor, replica;
};

// Runs `body` on replicas * slices processes. For each name, returns the largest value of all ranks.
Numbers on_mesh(int replicas, int slices, const std::function<Numbers(Here&)>& body) {
  return largest_of(numbers_of_processes(replicas * slices, [&](Group& world, Store& store) {
    Here here(world, replicas, slices, store);
    return body(here);
  }));
}

// Makes an exchange of whole models or of their parts, over the ranks that hold equal parts.
using Make = std::function<std::unique_ptr<Strategy>(const Task&, const ModelFactory&, Group&, const Clock&,
                                                     const ModelParts&)>;

std::unique_ptr<Strategy> all_reduce(const Task& task, const ModelFactory& factory, Group& group,
                                     const Clock& clock, const ModelParts& parts) {
  AllReduceOptions options;
  options.master = options.working = at::kDouble;
  options.clip_norm = task.clip;
  options.bucket_bytes = 1000;
  options.hash_every = 1;
  options.parts = parts;
  return std::make_unique<AllReduce>(factory, task.rule(), options, group, clock);
}

std::unique_ptr<Strategy> zero(const Task& task, const ModelFactory& factory, Group& group,
                               const Clock& clock, const ModelParts& parts, int stage) {
  ZeroOptions options;
  options.stage = stage;
  options.replica = task.flat();
  options.replica.parts = parts;
  return std::make_unique<Zero>(factory, task.rule(), options, group, clock);
}

// An exchange whose replicas are flat. more: the constructor's arguments between the options and the group.
template <typename S, typename... More>
Make flat_exchange(More... more) {
  return [more...](const Task& task, const ModelFactory& factory, Group& group, const Clock& clock,
                   const ModelParts& parts) {
    FlatReplicaOptions options = task.flat();
    options.parts = parts;
    return std::make_unique<S>(factory, task.rule(), options, more..., group, clock);
  };
}

std::unique_ptr<TensorParallel> tensor_parallel(const Task& task, Here& here, const Make& make) {
  return std::make_unique<TensorParallel>(
      task.factory, *here.tensor, std::vector<Group*>{here.tensor.get()}, here.clock,
      [&](const ModelFactory& part, const ModelParts& parts) {
        return make(task, part, *here.replica, here.clock, parts);
      },
      /*hash_every=*/1);
}

void train(Strategy& strategy, const Task& task, int index, int parts, int first, int last) {
  for (int64_t step = first; step <= last; ++step) {
    strategy.begin_step({step, kLr, false});
    strategy.forward_backward(task.part(step, index, parts));
    strategy.update();
  }
}

double difference(const StrategyState& state, const Named& expected) {
  return largest_difference(state.parameters, expected).difference;
}

// Returns rank 0's state on all ranks.
StrategyState shared(StrategyState state, Group& group, const Task& task) {
  double step = static_cast<double>(state.step);
  broadcast(group, &step, 1, DataType::kFp64, 0);
  state.step = static_cast<int64_t>(step);
  const auto share = [&](Named& tensors, const std::string& name, const at::Tensor& like) {
    if (group.rank() != 0) tensors[name] = torch::empty(like.sizes(), torch::kDouble);
    broadcast(group, tensors.at(name).data_ptr(), like.numel(), DataType::kFp64, 0);
  };
  const UpdateRule rule = task.rule();
  const Replica whole = make_replica(task.factory, at::kDouble, 0);
  for (const NamedTensor& p : whole.parameters) {
    share(state.parameters, p.name, p.tensor);
    for (const std::string& kind : rule.state_names()) share(state.optimizer, kind + "/" + p.name, p.tensor);
  }
  return state;
}

Numbers differences_of(const Make& make, const std::vector<std::pair<std::string, Task>>& tasks, int replicas,
                       Here& here) {
  Numbers result;
  for (const auto& [name, task] : tasks) {
    const auto strategy = tensor_parallel(task, here, make);
    train(*strategy, task, here.replica->rank(), replicas, 1, kSteps);
    const StrategyState state = strategy->state();
    if (here.rank == 0) result[name] = difference(state, one_process(task, kSteps));
  }
  return result;
}

TEST(TensorParallelStrategy, MakesTheUpdatesOfOneProcess) {
  const std::vector<std::pair<std::string, Task>> tasks = {
      {"mlp", mlp()},          {"lenet5", lenet()},
      {"gpt", gpt()},          {"gpt_clipped_adam", with(gpt(), "adam", 0.5)},
      {"llama", llama(false)}, {"llama_clipped_adam", with(llama(true), "adam", 0.5)}};
  for (const int replicas : {1, 2}) {
    const Numbers all =
        on_mesh(replicas, 2, [&](Here& here) { return differences_of(all_reduce, tasks, replicas, here); });
    EXPECT_EQ(all.size(), tasks.size());
    for (const auto& [name, value] : all) EXPECT_LE(value, 1e-10) << name << ", replicas " << replicas;
  }
}

// Every rank of a replica holds its own copy of a normalization. If one copy changes by itself, the rank that
// has it says so, with the parameter's name. Equal copies pass (tensor_parallel() compares in each step).
TEST(TensorParallelStrategy, RefusesCopiesThatDiffer) {
  const Task task = gpt();
  const Numbers all = on_mesh(1, 2, [&](Here& here) {
    const auto strategy = tensor_parallel(task, here, flat_exchange<LocalSgd>(int64_t{2}));
    train(*strategy, task, 0, 1, 1, 2);
    for (NamedTensor& p : strategy->evaluated().parameters) {
      const at::NoGradGuard no_grad;
      if (p.name == "transformer.ln_f.weight" && here.rank == 1) p.tensor.add_(1e-9);
    }
    std::string error;
    try {
      train(*strategy, task, 0, 1, 3, 3);
    } catch (const Error& e) {
      error = e.what();
    }
    // The other copies differ after the update, too, and the first one in order is named.
    const bool named = error.find(" differs from rank 0's after step 3") != std::string::npos;
    const bool expected = here.rank == 1 ? named : error.empty();
    return Numbers{
        {"wrong/" + std::to_string(here.rank) + "/" + (error.empty() ? "none" : "some"), expected ? 0 : 1}};
  });
  EXPECT_EQ(all.size(), 2u);
  for (const auto& [name, value] : all) EXPECT_EQ(value, 0) << name;
}

TEST(TensorParallelStrategy, WorksUnderEveryExchangeOfReplicas) {
  const Task task = with(gpt(), "adam", 0.5);
  const Numbers all = on_mesh(2, 2, [&](Here& here) {
    Numbers result;
    for (const int stage : {2, 3}) {
      const auto make = [stage](const Task& t, const ModelFactory& factory, Group& group, const Clock& clock,
                                const ModelParts& parts) {
        return zero(t, factory, group, clock, parts, stage);
      };
      result.merge(differences_of(make, {{"zero" + std::to_string(stage), task}}, 2, here));
    }
    for (const auto& [sharded, name] :
         {std::pair{true, "central_divided"}, std::pair{false, "central_master"}})
      result.merge(
          differences_of(flat_exchange<Central>(sharded), {{name, with(gpt(), "adam", 0)}}, 2, here));
    // Exchanges whose replicas differ are compared with the exchange of whole models (exchange_test.cc checks
    // its equations). The optimizer is not Adam: the gradients of the keys' biases are zero, and Adam turns
    // their rounding errors into steps, which grow with ADMM's penalty.
    const Task plain = with(gpt(), "sgd", 0.5);
    const Batch held_out = plain.part(kSteps + 1, here.replica->rank(), 2);
    const std::map<std::string, Make> exchanges = {
        {"local_sgd", flat_exchange<LocalSgd>(int64_t{2})},
        {"gossip", flat_exchange<Gossip>(GossipGraph::kRing)},
        {"admm", flat_exchange<Admm>(AdmmOptions{2, 0.5, true})},
        {"parallel_sgd_average", flat_exchange<ParallelSgd>(int64_t{2}, Combine::kAverage, Batch{})},
        {"parallel_sgd_best", flat_exchange<ParallelSgd>(int64_t{2}, Combine::kBest, held_out)}};
    for (const auto& [name, make] : exchanges) {
      const auto sharded = tensor_parallel(plain, here, make);
      train(*sharded, plain, here.replica->rank(), 2, 1, kSteps);
      std::unique_ptr<Strategy> whole = make(plain, plain.factory, *here.replica, here.clock, {});
      train(*whole, plain, here.replica->rank(), 2, 1, kSteps);
      const StrategyState state = sharded->state(), expected = whole->state();
      if (here.rank == 0) result[name] = difference(state, expected.parameters);
    }
    return result;
  });
  EXPECT_EQ(all.size(), 9u);
  for (const auto& [name, value] : all) EXPECT_LE(value, 1e-10) << name;
}

TEST(TensorParallelStrategy, StateIsOfWholeTensors) {
  const Task task = with(gpt(), "adam", 0);
  const Numbers all = on_mesh(2, 2, [&](Here& here) {
    const Named expected = one_process(task, 5);
    const auto sharded = tensor_parallel(task, here, all_reduce);
    train(*sharded, task, here.replica->rank(), 2, 1, 2);
    std::unique_ptr<Strategy> whole = all_reduce(task, task.factory, here.world, here.clock, {});
    whole->load_state(shared(sharded->state(), here.world, task));
    train(*whole, task, here.rank, 4, 3, 4);
    sharded->load_state(shared(whole->state(), here.world, task));
    train(*sharded, task, here.replica->rank(), 2, 5, 5);
    const StrategyState state = sharded->state();
    return here.rank == 0 ? Numbers{{"difference", difference(state, expected)}} : Numbers{};
  });
  EXPECT_LE(all.at("difference"), 1e-10);
}

TEST(TensorParallelStrategy, EvaluatesAndStopsTogetherAndCounts) {
  const Task task = gpt();
  const Numbers all = on_mesh(2, 2, [&](Here& here) {
    const auto strategy = tensor_parallel(task, here, all_reduce);
    strategy->begin_step({1, kLr, here.rank == 3});  // one rank of four is asked to stop
    strategy->forward_backward(task.part(1, here.replica->rank(), 2));
    const StepReport report = strategy->update();
    strategy->consensus();
    const Batch batch = task.batch(2);
    const Named trained = one_process(task, 1);
    at::NoGradGuard no_grad;
    const Model& part = strategy->evaluated().model;
    Replica whole = make_replica(task.factory, at::kDouble, 0);
    for (NamedTensor& p : whole.parameters) p.tensor.copy_(trained.at(p.name));
    const double loss = part.loss(part.forward(batch.input), batch.target).item<double>();
    const double expected = whole.model.loss(whole.model.forward(batch.input), batch.target).item<double>();
    Numbers result = strategy->strategy_stats();
    result["goes_on"] = report.stop ? 0 : 1;
    result["evaluation"] = std::abs(loss - expected);
    result["no_bytes"] = report.bytes_sent > 0 ? 0 : 1;
    return result;
  });
  EXPECT_EQ(all.at("goes_on"), 0);
  EXPECT_EQ(all.at("no_bytes"), 0);
  EXPECT_LE(all.at("evaluation"), 1e-12);
  EXPECT_EQ(all.at("tensor_ranks"), 2);
  EXPECT_EQ(all.at("layer_elements"), 8 * 4 * 5 * 24 / 2);  // half of the batch of 8, 5 tokens, width 24
  EXPECT_EQ(all.at("layer_formula"), all.at("layer_elements"));
  // The model has an 11 x 24 embedding, 5 x 24 positions, two layers and a normalization.
  const double layer = 24 * 72 + 72 + 24 * 24 + 24 + 2 * 24 * 96 + 96 + 24 + 4 * 24;
  EXPECT_EQ(all.at("whole_parameters"), 11 * 24 + 5 * 24 + 2 * layer + 2 * 24);
  const double halved = 24 * 72 + 72 + 24 * 24 + 2 * 24 * 96 + 96;
  EXPECT_EQ(all.at("held_parameters"), 6 * 24 + 5 * 24 + 2 * (layer - halved / 2) + 2 * 24);
}

// The padding between tensors moves when the buckets are rebuilt in the order of arrival. It must not change
// the norm.
TEST(AllReduce, ClipsByTheNormOfTheGradientsAlone) {
  const Task task = with(gpt(), "adam", 0.5);
  const Numbers all = on_mesh(2, 1, [&](Here& here) {
    std::unique_ptr<Strategy> whole = all_reduce(task, task.factory, here.world, here.clock, {});
    train(*whole, task, here.rank, 2, 1, kSteps);
    const StrategyState state = whole->state();
    return here.rank == 0 ? Numbers{{"difference", difference(state, one_process(task, kSteps))}} : Numbers{};
  });
  EXPECT_LE(all.at("difference"), 1e-10);
}

HybridOptions hybrid_options(const Task& task, std::vector<std::string> layers) {
  return {std::move(layers), task.flat()};
}

TEST(Hybrid, MakesTheUpdatesOfOneProcess) {
  struct Case {
    std::string name;
    Task task;
    std::vector<std::string> layers;
  };
  const std::string block = "transformer.h.0.";
  const std::vector<Case> cases = {
      {"mlp", mlp(), {"fc1", "fc3"}},
      {"lenet5", lenet(), {"fc1", "fc2"}},
      {"lenet5_clipped_adam", with(lenet(), "adam", 0.3), {"fc1", "fc2", "fc3"}},
      {"gpt", gpt(), {block + "attn.c_attn", block + "mlp.c_fc", block + "mlp.c_proj"}},
      {"none", mlp(), {}}};
  for (const int ranks : {2, 4}) {
    const Numbers all = on_mesh(ranks, 1, [&](Here& here) {
      Numbers result;
      for (const Case& c : cases) {
        Hybrid hybrid(c.task.factory, c.task.rule(), hybrid_options(c.task, c.layers), here.world,
                      here.clock);
        train(hybrid, c.task, here.rank, ranks, 1, kSteps);
        const Named expected = one_process(c.task, kSteps);
        const StrategyState state = hybrid.state();
        if (here.rank == 0) result[c.name] = difference(state, expected);
        hybrid.consensus();
        Named evaluated;
        for (const NamedTensor& p : hybrid.evaluated().parameters) evaluated[p.name] = p.tensor.detach();
        result[c.name + "_evaluated"] = largest_difference(evaluated, expected).difference;
      }
      return result;
    });
    EXPECT_EQ(all.size(), 2 * cases.size());
    for (const auto& [name, value] : all) EXPECT_LE(value, 1e-10) << name << ", ranks " << ranks;
  }
}

TEST(Hybrid, StateFitsAnotherNumberOfRanksAndOtherLayers) {
  const Task task = with(lenet(), "adam", 0);
  const Numbers all = on_mesh(2, 2, [&](Here& here) {
    const Named expected = one_process(task, 4);
    Hybrid two(task.factory, task.rule(), hybrid_options(task, {"fc1"}), *here.tensor, here.clock);
    train(two, task, here.tensor->rank(), 2, 1, 2);
    Hybrid four(task.factory, task.rule(), hybrid_options(task, {"fc1", "fc3"}), here.world, here.clock);
    four.load_state(shared(two.state(), *here.tensor, task));
    train(four, task, here.rank, 4, 3, 3);
    two.load_state(shared(four.state(), here.world, task));
    train(two, task, here.tensor->rank(), 2, 4, 4);
    const StrategyState state = two.state();
    return here.tensor->rank() == 0 ? Numbers{{"difference", difference(state, expected)}} : Numbers{};
  });
  EXPECT_LE(all.at("difference"), 1e-10);
}

TEST(Hybrid, MovesWhatTheFormulaSays) {
  const Task task = lenet();
  const Numbers all = on_mesh(2, 1, [&](Here& here) {
    Hybrid hybrid(task.factory, task.rule(), hybrid_options(task, {"fc1", "fc2"}), here.world, here.clock);
    train(hybrid, task, here.rank, 2, 1, 2);
    return hybrid.strategy_stats();
  });
  const double n = kBatch / 2.0, fc1_in = 16 * 2 * 2;
  EXPECT_EQ(all.at("model_parallel_layers"), 2);
  EXPECT_EQ(all.at("model_parallel/fc1"), 8 * (2 * n * fc1_in + n * 120));
  EXPECT_EQ(all.at("model_parallel/fc2"), 8 * (2 * n * 120 + n * 84));
  EXPECT_EQ(all.at("model_parallel_bytes"), all.at("model_parallel/fc1") + all.at("model_parallel/fc2"));
  const double shared = 6 * 25 + 6 + 16 * 6 * 25 + 16 + 84 * 10 + 10,
               sharded = fc1_in * 120 + 120 + 120 * 84 + 84;
  EXPECT_EQ(all.at("data_parallel_bytes"), all.at("data_parallel_formula"));
  EXPECT_GE(all.at("data_parallel_formula"), 8 * shared);
  EXPECT_LE(all.at("data_parallel_formula"), 8 * (shared + 6 * 64));  // with the padding between tensors
  EXPECT_EQ(all.at("whole_bytes"), 8 * (shared + sharded));
  EXPECT_EQ(all.at("held_bytes"), 8 * (shared + sharded / 2));
}

}  // namespace
}  // namespace starling
