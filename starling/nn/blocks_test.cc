#include "starling/nn/blocks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <numeric>

#include "starling/base/error.h"

namespace starling {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

ModelSpec tiny_gpt() {
  ModelSpec spec;
  spec.name = "gpt";
  spec.layers = 2;
  spec.width = 16;
  spec.heads = 2;
  spec.tokens = 8;
  return spec;
}

ModelSpec tiny_llama() {
  ModelSpec spec = tiny_gpt();
  spec.name = "llama";
  return spec;
}

struct Case {
  ModelSpec spec;
  ModelShape shape;
  at::Tensor input;
  size_t blocks;
};

std::vector<Case> cases() {
  ModelSpec mlp, lenet5, resnet;
  mlp.name = "mlp";
  mlp.widths = {12, 7, 5, 3};
  lenet5.name = "lenet5";
  resnet.name = "resnet18";
  return {{mlp, {{3, 2, 2}, 3, false}, torch::randn({4, 3, 2, 2}), 3},
          {lenet5, {{1, 28, 28}, 10, false}, torch::randn({2, 1, 28, 28}), 5},
          {resnet, {{3, 8, 8}, 10, false}, torch::randn({2, 3, 8, 8}), 10},
          {tiny_gpt(), {{8}, 11, true}, torch::randint(11, {2, 8}, torch::kLong), 4},
          {tiny_llama(), {{8}, 11, true}, torch::randint(11, {2, 8}, torch::kLong), 4}};
}

std::string refusal(const Model& model) {
  try {
    tensors_of_blocks(model);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(BlocksTest, ComputeWhatForwardComputesAndOwnEveryParameter) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.spec.name);
    torch::manual_seed(1);
    const Model model = zoo_model(c.spec, c.shape)();
    model.module->eval();
    ASSERT_EQ(model.blocks.size(), c.blocks);
    EXPECT_EQ(tensors_of_blocks(model).size(), c.blocks);
    const Tensors out = run_blocks(model.blocks, 0, c.blocks, {c.input});
    ASSERT_EQ(out.size(), 1u);
    EXPECT_TRUE(torch::equal(out[0], model.forward(c.input)));
  }
}

TEST(BlocksTest, TheEmbeddingOfGptIsInItsFirstAndItsLastBlock) {
  const Model model = zoo_model(tiny_gpt(), {{8}, 11, true})();
  const std::vector<BlockTensors> tensors = tensors_of_blocks(model);
  EXPECT_THAT(tensors.front().parameters, ElementsAre("transformer.wte.weight", "transformer.wpe.weight"));
  EXPECT_THAT(tensors.back().parameters, Contains("transformer.wte.weight"));
  EXPECT_EQ(model.blocks[1].name, "h.0");
}

TEST(BlocksTest, TheTablesOfLlamaAreInTheFirstAndTheLastBlock) {
  ModelSpec spec = tiny_llama();
  const std::vector<BlockTensors> two = tensors_of_blocks(zoo_model(spec, {{8}, 11, true})());
  EXPECT_THAT(two.front().parameters, ElementsAre("model.embed_tokens.weight"));
  EXPECT_THAT(two.back().parameters, ElementsAre("model.norm.weight", "lm_head.weight"));
  spec.tied = true;
  const std::vector<BlockTensors> tied = tensors_of_blocks(zoo_model(spec, {{8}, 11, true})());
  EXPECT_THAT(tied.back().parameters, ElementsAre("model.norm.weight", "model.embed_tokens.weight"));
}

TEST(BlocksTest, MeasuringTakesTimeInEachBlockAndLeavesNoGradients) {
  ModelSpec spec;
  spec.name = "lenet5";
  const Model model = zoo_model(spec, {{1, 28, 28}, 10, false})();
  const std::vector<double> seconds = measure_blocks(model, {torch::randn({8, 1, 28, 28})},
                                                     {torch::zeros({8}, torch::kLong)}, SystemClock(), 2);
  ASSERT_EQ(seconds.size(), 5u);
  for (double s : seconds) EXPECT_GT(s, 0);
  for (const auto& p : model.module->parameters()) EXPECT_FALSE(p.grad().defined());
}

TEST(BlocksTest, TheEstimateCountsProductsAtEveryPosition) {
  ModelSpec spec;
  spec.name = "lenet5";
  const Model lenet = zoo_model(spec, {{1, 28, 28}, 10, false})();
  const std::vector<double> work = estimate_blocks(lenet, {torch::zeros({2, 1, 28, 28})});
  ASSERT_EQ(work.size(), 5u);
  const double sum = std::accumulate(work.begin(), work.end(), 0.0);
  EXPECT_GT(work[0] + work[1], 0.6 * sum);  // the convolutions have a twentieth of the parameters
  EXPECT_EQ(work, estimate_blocks(lenet, {torch::zeros({2, 1, 28, 28})}));
  for (double w : work) EXPECT_GT(w, 0);

  spec.name = "gpt";
  spec.layers = 2;
  spec.width = 16;
  spec.heads = 2;
  spec.tokens = 8;
  const Model gpt = zoo_model(spec, {{8}, 50, true})();
  const std::vector<double> words = estimate_blocks(gpt, {torch::zeros({2, 8}, torch::kLong)});
  EXPECT_EQ(words.front(), 2 * 8 * 16);  // the table is looked up
  EXPECT_EQ(words.back(), 2 * 8 * 50 + 2 * 8 * (50 * 16));
  EXPECT_EQ(words[1], 2 * 8 * 16 + 2 * 8 * (12 * 16 * 16));
}

struct Net : torch::nn::Module {
  Net() {
    a = register_module("a", torch::nn::Linear(3, 3));
    b = register_module("b", torch::nn::Linear(3, 2));
  }
  torch::nn::Linear a{nullptr}, b{nullptr};
};

TEST(BlocksTest, AModelThatCannotBeCutIsRefusedWithTheReason) {
  const auto net = std::make_shared<Net>();
  Model model{net, [net](const at::Tensor& x) { return net->b(net->a(x)); }, cross_entropy};
  EXPECT_THAT(refusal(model), HasSubstr("has no blocks at which it can be cut"));
  model.blocks = {make_block("a", {net->a.ptr()}, [net](const at::Tensor& x) { return net->a(x); })};
  EXPECT_THAT(refusal(model), HasSubstr("parameter \"b.weight\" belongs to no block"));
  const torch::nn::Linear stranger(2, 2);
  model.blocks.push_back(make_block("b", {net->b.ptr()}, [net](const at::Tensor& x) { return net->b(x); }));
  EXPECT_EQ(refusal(model), "accepted");
  model.blocks.push_back(make_block("c", {stranger.ptr()}, [](const at::Tensor& x) { return x; }));
  EXPECT_THAT(refusal(model), HasSubstr("block \"c\" uses a tensor \"weight\" that is not part"));
}

}  // namespace
}  // namespace starling
