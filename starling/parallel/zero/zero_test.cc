// ZeRO on real processes in fp64. Every stage makes the updates of one process with the whole batch, holds
// and moves the bytes of the formulas, and has a state that fits any number of ranks.
#include "starling/parallel/zero/zero.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>

#include "starling/base/error.h"
#include "starling/parallel/one_process_test_training.h"
#include "starling/plan/memory.h"
#include "starling/testing/join_group.h"
#include "starling/torch_testing/tensor_difference.h"
#include "starling/torch_testing/torch_group_processes.h"

namespace starling {
namespace {

using Named = std::map<std::string, at::Tensor>;

constexpr int kRanks = 4;
constexpr int64_t kBatch = 12;
constexpr double kLr = 0.05;

ModelFactory mlp() {
  ModelSpec spec;
  spec.name = "mlp";
  spec.widths = {256, 256, 256};
  return zoo_model(spec, {{256}, 256, false});
}

// A model whose embedding is also the weight of the head. Its widths leave some padding.
ModelFactory gpt() {
  ModelSpec spec;
  spec.name = "gpt";
  spec.layers = 2;
  spec.width = 24;
  spec.heads = 2;
  spec.tokens = 5;
  return zoo_model(spec, {{5}, 11, true});
}

ModelFactory llama() {
  ModelSpec spec;
  spec.name = "llama";
  spec.layers = 2;
  spec.width = 24;
  spec.heads = 4;
  spec.kv_heads = 2;
  spec.tokens = 5;
  return zoo_model(spec, {{5}, 11, true});
}

Batch batch_of(bool text, int64_t step) {
  torch::manual_seed(100 + step);
  if (text) return {torch::randint(11, {kBatch, 5}), torch::randint(11, {kBatch, 5})};
  return {torch::randn({kBatch, 256}, torch::kDouble), torch::randint(256, {kBatch})};
}

Batch part_of(const Batch& batch, const Group& group) {
  const int64_t n = kBatch / group.size();
  return {batch.input.narrow(0, group.rank() * n, n), batch.target.narrow(0, group.rank() * n, n)};
}

OptimizerSpec optimizer_of(const std::string& name) {
  OptimizerSpec spec;
  spec.name = name;
  return spec;
}

UpdateRule rule(const std::string& name) {
  return make_update_rule(optimizer_of(name));
}

ZeroOptions options(int stage, double clip = 0) {
  ZeroOptions result;
  result.stage = stage;
  result.replica.master = result.replica.working = at::kDouble;
  result.replica.clip_norm = clip;
  result.bucket_bytes = 40'000;
  return result;
}

Named one_process(const ModelFactory& factory, bool text, const std::string& optimizer, double clip,
                  int steps) {
  return train_one_process(factory, [text](int64_t step) { return batch_of(text, step); },
                           optimizer_of(optimizer), steps, {.lr = kLr, .clip = clip});
}

void train(Zero& zero, Group& group, bool text, int first, int last) {
  for (int64_t step = first; step <= last; ++step) {
    zero.begin_step({step, kLr, false});
    zero.forward_backward(part_of(batch_of(text, step), group));
    zero.update();
  }
}

// Returns rank 0's state on all ranks.
StrategyState shared_state(Zero& zero, Group& group, const UpdateRule& update) {
  StrategyState state = zero.state();
  std::vector<double> step = {static_cast<double>(state.step)};
  broadcast(group, step.data(), 1, DataType::kFp64, 0);
  state.step = static_cast<int64_t>(step[0]);
  const auto share = [&](Named& tensors, const std::string& name, const at::Tensor& like) {
    if (group.rank() != 0) tensors[name] = torch::empty(like.sizes(), torch::kDouble);
    broadcast(group, tensors.at(name).data_ptr(), like.numel(), DataType::kFp64, 0);
  };
  for (const NamedTensor& p : zero.evaluated().parameters) {
    share(state.parameters, p.name, p.tensor);
    for (const std::string& kind : update.state_names())
      share(state.optimizer, kind + "/" + p.name, p.tensor);
  }
  return state;
}

// Runs `body` on `size` processes. Returns what rank 0 returns.
Numbers on_ranks(int size, const std::function<Numbers(Group&, Store&)>& body) {
  return numbers_of_processes(size, body)[0];
}

Numbers differences(Group& group, const std::string& model, const ModelFactory& factory, bool text,
                    const std::string& optimizer, double clip) {
  constexpr int kSteps = 4;
  const SystemClock clock;
  const Named expected = one_process(factory, text, optimizer, clip, kSteps);
  Numbers result;
  for (int stage = 1; stage <= 3; ++stage) {
    Zero zero(factory, rule(optimizer), options(stage, clip), group, clock);
    train(zero, group, text, 1, kSteps);
    const StrategyState state = zero.state();
    zero.consensus();
    Named evaluated;
    for (const NamedTensor& p : zero.evaluated().parameters) evaluated[p.name] = p.tensor.detach();
    const std::string name = model + "_" + optimizer + "_" + std::to_string(stage);
    if (group.rank() == 0) result[name] = largest_difference(state.parameters, expected).difference;
    result[name + "_evaluated"] = largest_difference(evaluated, expected).difference;
  }
  return result;
}

TEST(Zero, MakesTheUpdatesOfOneProcess) {
  const Numbers all = on_ranks(3, [](Group& group, Store&) {
    Numbers result = differences(group, "mlp", mlp(), false, "sgd", 0);
    result.merge(differences(group, "gpt", gpt(), true, "adam", 0.5));
    result.merge(differences(group, "llama", llama(), true, "adamw", 0.5));
    return result;
  });
  ASSERT_EQ(all.size(), 18u);
  for (const auto& [name, difference] : all) EXPECT_LE(difference, 1e-10) << name;
}

// A rank holds parts of tensors, whose norms the ranks add up.
TEST(Zero, ScalesTheRateOfEachTensor) {
  for (const char* name : {"lars", "lamb"}) {
    const Numbers all = on_ranks(3, [name](Group& group, Store&) {
      OptimizerSpec spec = optimizer_of(name);
      spec.weight_decay = 0.1;
      spec.exempt_vectors = true;
      spec.trust = 0.02;
      const auto batches = [](int64_t step) { return batch_of(true, step); };
      const Named expected = train_one_process(gpt(), batches, spec, 4, {.lr = kLr});
      OptimizerSpec plain = spec;
      plain.name = spec.name == "lars" ? "sgd" : "adamw";
      const Named unscaled = train_one_process(gpt(), batches, plain, 4, {.lr = kLr});
      const SystemClock clock;
      Numbers result;
      for (int stage = 1; stage <= 3; ++stage) {
        Zero zero(gpt(), make_update_rule(spec), options(stage), group, clock);
        train(zero, group, true, 1, 4);
        const StrategyState state = zero.state();
        if (group.rank() != 0) continue;
        result["scaled" + std::to_string(stage)] = largest_difference(state.parameters, expected).difference;
        result["unscaled" + std::to_string(stage)] =
            largest_difference(state.parameters, unscaled).difference;
      }
      return result;
    });
    for (int stage = 1; stage <= 3; ++stage) {
      EXPECT_LE(all.at("scaled" + std::to_string(stage)), 1e-10) << name << stage;
      EXPECT_GE(all.at("unscaled" + std::to_string(stage)), 1e-3) << name << stage;
    }
  }
}

// The limit is small enough to change most elements of this model's gradients.
TEST(Zero, ClipsTheElementsOfTheMeanGradient) {
  constexpr double kLimit = 1e-3;
  constexpr int kSteps = 3;
  const Numbers all = on_ranks(3, [](Group& group, Store&) {
    const auto batches = [](int64_t step) { return batch_of(false, step); };
    const Named expected =
        train_one_process(mlp(), batches, optimizer_of("sgd"), kSteps, {.lr = kLr, .clip_value = kLimit});
    const Named free = one_process(mlp(), false, "sgd", 0, kSteps);
    const SystemClock clock;
    Numbers result;
    for (int stage = 1; stage <= 3; ++stage) {
      ZeroOptions limited = options(stage);
      limited.replica.clip_value = kLimit;
      Zero zero(mlp(), rule("sgd"), limited, group, clock);
      train(zero, group, false, 1, kSteps);
      const StrategyState state = zero.state();
      if (group.rank() != 0) continue;
      result["clipped" + std::to_string(stage)] = largest_difference(state.parameters, expected).difference;
      result["free" + std::to_string(stage)] = largest_difference(state.parameters, free).difference;
    }
    return result;
  });
  for (int stage = 1; stage <= 3; ++stage) {
    EXPECT_LE(all.at("clipped" + std::to_string(stage)), 1e-10) << stage;
    EXPECT_GE(all.at("free" + std::to_string(stage)), 1e-4) << stage;
  }
}

TEST(Zero, HoldsAndMovesWhatTheFormulaSays) {
  const Numbers all = on_ranks(kRanks, [](Group& group, Store&) {
    const SystemClock clock;
    Numbers result;
    for (int stage = 1; stage <= 3; ++stage) {
      for (const bool mixed : {false, true}) {
        ZeroOptions o = options(stage);
        o.replica.master = at::kFloat;
        o.replica.working = mixed ? at::kBFloat16 : at::kFloat;
        Zero zero(mlp(), rule("adam"), o, group, clock);
        train(zero, group, false, 1, 2);
        for (const auto& [name, value] : zero.strategy_stats())
          result[(mixed ? "mixed" : "fp32") + std::to_string(stage) + name] = value;
      }
    }
    return result;
  });
  const double psi = 2 * (256 * 256 + 256), n = kRanks;
  const double fp32[] = {8 * psi + 8 * psi / n, 4 * psi + 12 * psi / n, 16 * psi / n};
  const double mixed[] = {4 * psi + 12 * psi / n, 2 * psi + 14 * psi / n, 16 * psi / n};
  for (int stage = 1; stage <= 3; ++stage) {
    for (const char* kind : {"fp32", "mixed"}) {
      const auto value = [&](const char* name) { return all.at(kind + std::to_string(stage) + name); };
      const double expected = (kind == std::string("fp32") ? fp32 : mixed)[stage - 1];
      EXPECT_EQ(value("padding"), 0);
      EXPECT_EQ(value("held_bytes"), expected) << kind << stage;
      EXPECT_EQ(value("formula_bytes"), expected) << kind << stage;
      EXPECT_EQ(value("traffic_elements"), (stage == 3 ? 3 : 2) * psi * (n - 1) / n) << kind << stage;
      EXPECT_EQ(value("traffic_formula"), value("traffic_elements"));
      // The temporary bytes never include all gradients at once, nor (stage 3) all parameters: only one
      // block's, or one bucket.
      const double element = kind == std::string("fp32") ? 4 : 2;
      EXPECT_LE(value("temporary_bytes"), element * psi * (stage == 3 ? 1 : 0.5)) << kind << stage;
    }
  }
}

// Stage 1 exchanges once in a step, however many parts its batch has.
TEST(Zero, PartsOfABatchMoveWhatTheFormulaSays) {
  const Numbers all = on_ranks(kRanks, [](Group& group, Store&) {
    const SystemClock clock;
    Numbers result;
    for (int stage = 1; stage <= 3; ++stage) {
      ZeroOptions o = options(stage);
      o.replica.accumulate = 2;
      Zero zero(mlp(), rule("adam"), o, group, clock);
      train(zero, group, false, 1, 2);
      for (const auto& [name, value] : zero.strategy_stats()) result[std::to_string(stage) + name] = value;
    }
    return result;
  });
  const double psi = 2 * (256 * 256 + 256), n = kRanks;
  const double moves[] = {2, 3, 6};
  for (int stage = 1; stage <= 3; ++stage) {
    const auto value = [&](const char* name) { return all.at(std::to_string(stage) + name); };
    EXPECT_EQ(value("traffic_elements"), moves[stage - 1] * psi * (n - 1) / n) << stage;
    EXPECT_EQ(value("traffic_formula"), value("traffic_elements")) << stage;
  }
}

// The allocator's peak consists of states, gathered blocks and buckets, activations, and little more.
TEST(Zero, PeaksAtStatesAndWhatAStepGathersAndKeeps) {
  const Numbers all = on_ranks(2, [](Group& group, Store&) {
    const SystemClock clock;
    ModelSpec spec;
    spec.name = "gpt";
    spec.layers = 6;
    spec.width = 64;
    spec.heads = 2;
    spec.tokens = 5;
    const ModelFactory factory = zoo_model(spec, {{5}, 11, true});
    Numbers result;
    for (int stage = 1; stage <= 3; ++stage) {
      ZeroOptions o = options(stage);
      o.replica.master = o.replica.working = at::kFloat;
      o.memory = &count_tensor_memory();
      Zero zero(factory, rule("adam"), o, group, clock);
      train(zero, group, true, 1, 3);
      for (const auto& [name, value] : zero.strategy_stats()) result[std::to_string(stage) + name] = value;
    }
    return result;
  });
  double before = 1e12;
  for (const std::string stage : {"1", "2", "3"}) {
    const double peak = all.at(stage + "peak_bytes");
    EXPECT_GT(all.at(stage + "activation_bytes"), 0);
    EXPECT_GT(peak, all.at(stage + "held_bytes"));
    EXPECT_LE(peak, 1.1 * all.at(stage + "peak_formula")) << "stage " << stage;
    EXPECT_LT(peak, before) << "stage " << stage;
    before = peak;
  }
}

TEST(Zero, CountsPaddingApart) {
  const Numbers print = on_ranks(3, [](Group& group, Store&) {
    const SystemClock clock;
    Zero zero(gpt(), rule("sgd"), options(2), group, clock);
    train(zero, group, true, 1, 1);
    return zero.strategy_stats();
  });
  const double psi = print.at("parameters"), laid_out = psi + print.at("padding");
  // The parameters, from the last one on, fill three buckets. Each parameter begins at a multiple of 64, so
  // the buckets need 5696, 6784 and 3200 elements. Three equal shares are a multiple of 3 * 64 elements.
  EXPECT_EQ(psi, 5424 + 6576 + 2880);
  EXPECT_EQ(laid_out, 5760 + 6912 + 3264);
  EXPECT_EQ(print.at("formula_bytes"), 8 * psi + 16 * psi / 3);
  EXPECT_EQ(print.at("held_bytes"), 8 * laid_out + 16 * laid_out / 3);
  EXPECT_NEAR(print.at("traffic_elements"), 2 * laid_out * 2 / 3, 1e-6);
}

TEST(Zero, StateFitsAnotherNumberOfRanks) {
  const Numbers all = on_ranks(kRanks, [](Group& group, Store& store) {
    const SystemClock clock;
    const UpdateRule adam = rule("adam");
    const std::vector<int> ranks = group.rank() < 2 ? std::vector<int>{0, 1} : std::vector<int>{2, 3};
    const auto pair = join_subset(store, group, "pair", ranks);
    Numbers result;
    const Named expected = one_process(gpt(), true, "adam", 0, 5);
    for (int stage = 1; stage <= 3; ++stage) {
      Zero two(gpt(), adam, options(stage), *pair, clock);
      train(two, *pair, true, 1, 2);
      Zero four(gpt(), adam, options(stage % 3 + 1), group, clock);
      four.load_state(shared_state(two, *pair, adam));
      train(four, group, true, 3, 4);
      two.consensus();
      two.load_state(shared_state(four, group, adam));
      train(two, *pair, true, 5, 5);
      const StrategyState state = two.state();
      if (pair->rank() == 0)
        result["stage_" + std::to_string(stage)] = largest_difference(state.parameters, expected).difference;
    }
    return result;
  });
  ASSERT_EQ(all.size(), 3u);
  for (const auto& [name, difference] : all) EXPECT_LE(difference, 1e-10) << name;
}

// Returns 1 for each of `words` that occurs in the message that `body` throws.
template <typename F>
Numbers words_in_error(F body, const std::vector<std::string>& words) {
  std::string message = "nothing was thrown";
  try {
    body();
  } catch (const Error& error) {
    message = error.what();
  }
  Numbers result;
  for (const std::string& word : words) result[word] = message.find(word) != std::string::npos ? 1 : 0;
  return result;
}

TEST(Zero, RefusesStageThreeWithoutBlocks) {
  const Numbers found = on_ranks(1, [](Group& group, Store&) {
    const SystemClock clock;
    const ModelFactory plain = [] {
      Model model = mlp()();
      model.blocks.clear();
      return model;
    };
    Zero allowed(plain, rule("sgd"), options(2), group, clock);
    return words_in_error([&] { Zero(plain, rule("sgd"), options(3), group, clock); },
                          {"train.shard", "blocks"});
  });
  EXPECT_EQ(found, (Numbers{{"train.shard", 1}, {"blocks", 1}}));
}

TEST(Zero, NamesWhatACheckpointLacks) {
  const std::string name = "exp_avg/transformer.wte.weight";
  for (int stage = 1; stage <= 3; ++stage) {
    const Numbers found = on_ranks(1, [&](Group& group, Store&) {
      const SystemClock clock;
      Zero zero(gpt(), rule("adam"), options(stage), group, clock);
      train(zero, group, true, 1, 1);
      StrategyState state = zero.state();
      zero.load_state(state);
      state.optimizer.erase(name);
      return words_in_error([&] { zero.load_state(state); }, {name});
    });
    EXPECT_EQ(found, (Numbers{{name, 1}}));
  }
}

}  // namespace
}  // namespace starling
