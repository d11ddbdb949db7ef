#include "starling/nn/layer_volumes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <algorithm>

#include "starling/base/error.h"

namespace starling {
namespace {

ModelSpec named(const std::string& name) {
  ModelSpec spec;
  spec.name = name;
  return spec;
}

std::vector<LayerVolume> volumes_of(const ModelSpec& spec) {
  const ModelShape shape = usual_shape(spec);
  return layer_volumes(zoo_model(spec, shape), shape);
}

struct Sums {
  int64_t weights = 0, inputs = 0, products = 0;
};

Sums sums_of(const std::vector<LayerVolume>& layers) {
  Sums sums;
  for (const LayerVolume& layer : layers) {
    sums.weights += layer.weights;
    sums.inputs += layer.inputs;
    sums.products += layer.products;
  }
  return sums;
}

// FireCaffe's table 1. MB are 10⁶ bytes of fp32 at batch 1024. TFLOP are those of forward and backward, 3 · 2
// per product.
struct Printed {
  const char* model;
  double d_mb, w_mb, tflop;
  int64_t weights;  // |W|, computed by hand from the published shapes
};

class FireCaffe : public testing::TestWithParam<Printed> {};

TEST_P(FireCaffe, VolumesAreThoseOfThePaper) {
  const Printed& paper = GetParam();
  const Sums sums = sums_of(volumes_of(named(paper.model)));
  EXPECT_NEAR(static_cast<double>(sums.inputs) * 4 * 1024 / 1e6, paper.d_mb, 0.01 * paper.d_mb);
  // The paper prints |W| in whole MB. The bound is 1 %, or half a MB if that is larger (NiN's 30 is 30.36).
  EXPECT_NEAR(static_cast<double>(sums.weights) * 4 / 1e6, paper.w_mb, std::max(0.01 * paper.w_mb, 0.5));
  EXPECT_EQ(sums.weights, paper.weights);
  EXPECT_NEAR(static_cast<double>(sums.products) * 6 * 1024 / 1e12, paper.tflop, 0.02 * paper.tflop);
}

INSTANTIATE_TEST_SUITE_P(Table1, FireCaffe,
                         testing::Values(Printed{"alexnet", 1683, 249, 7.0, 62367776},
                                         Printed{"nin", 5793, 30, 6.7, 7589920},
                                         Printed{"googlenet", 19102, 54, 9.7, 13365696},
                                         Printed{"vgg19", 42679, 575, 120, 143652544}),
                         [](const auto& info) { return std::string(info.param.model); });

TEST(LayerVolumes, GoogLeNetWithoutItsHeadsIsThePaperToTheLastDigit) {
  std::vector<LayerVolume> layers = volumes_of(named("googlenet"));
  EXPECT_EQ(layers.size(), 58u + 6);
  std::erase_if(layers, [](const LayerVolume& layer) { return layer.name.starts_with("aux"); });
  EXPECT_NEAR(static_cast<double>(sums_of(layers).inputs) * 4 * 1024 / 1e6, 19102, 1);
}

TEST(LayerVolumes, EveryLayerByHand) {
  const std::vector<LayerVolume> layers = volumes_of(named("lenet5"));
  ASSERT_EQ(layers.size(), 5u);
  EXPECT_EQ(layers[0].name, "conv1");
  EXPECT_EQ(layers[0].kind, LayerKind::kConvolution);
  EXPECT_EQ(layers[0].weights, 6 * 25);
  EXPECT_EQ(layers[0].inputs, 28 * 28);
  EXPECT_EQ(layers[0].products, 6 * 25 * 28 * 28);
  EXPECT_EQ(layers[1].weights, 16 * 6 * 25);
  EXPECT_EQ(layers[1].inputs, 6 * 14 * 14);
  EXPECT_EQ(layers[1].products, 16 * 6 * 25 * 10 * 10);
  EXPECT_EQ(layers[2].name, "fc1");
  EXPECT_EQ(layers[2].kind, LayerKind::kLinear);
  EXPECT_EQ(layers[2].weights, 400 * 120);
  EXPECT_EQ(layers[2].inputs, 400);
  EXPECT_EQ(layers[0].outputs, 6 * 28 * 28);
  EXPECT_EQ(layers[2].outputs, 120);
  EXPECT_FALSE(layers[0].input_gradient);
  for (size_t i = 1; i < layers.size(); ++i) EXPECT_TRUE(layers[i].input_gradient) << layers[i].name;
  EXPECT_EQ(layers[4].weights, 84 * 10);
  EXPECT_EQ(layers[4].products, 84 * 10);
}

TEST(LayerVolumes, OfATransformerAreItsProductsWithWeights) {
  ModelSpec spec = named("gpt");
  spec.layers = 2;
  spec.width = 64;
  spec.heads = 4;
  spec.tokens = 16;
  spec.vocabulary = 100;
  const ModelShape shape{{16}, 100, true};
  const std::vector<LayerVolume> layers = layer_volumes(zoo_model(spec, shape), shape);
  ASSERT_EQ(layers.size(), 4u * 2 + 1);  // attention's own products have no weight
  const int64_t wide[] = {3, 1, 4, 4};
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(layers[i].weights, wide[i % 4] * 64 * 64) << layers[i].name;
    EXPECT_EQ(layers[i].inputs, 16 * 64 * (i % 4 == 3 ? 4 : 1)) << layers[i].name;
    EXPECT_EQ(layers[i].products, layers[i].weights * 16) << layers[i].name;
  }
  EXPECT_EQ(layers[4].name, "transformer.h.1.attn.c_attn");
  EXPECT_EQ(layers[8].name, "transformer.wte");  // the output layer is the embedding
  EXPECT_EQ(layers[8].weights, 100 * 64);
}

TEST(LayerVolumes, OfLlamaAreItsProductsWithWeights) {
  ModelSpec spec = named("llama");
  spec.layers = 2;
  spec.width = 64;
  spec.heads = 4;
  spec.kv_heads = 2;
  spec.tokens = 16;
  const ModelShape shape{{16}, 100, true};
  const std::vector<LayerVolume> layers = layer_volumes(zoo_model(spec, shape), shape);
  ASSERT_EQ(layers.size(), 7u * 2 + 1);
  const int64_t weights[] = {64 * 64, 64 * 32, 64 * 32, 64 * 64, 64 * 192, 64 * 192, 64 * 192};
  for (size_t i = 0; i < 14; ++i) {
    EXPECT_EQ(layers[i].weights, weights[i % 7]) << layers[i].name;
    EXPECT_EQ(layers[i].inputs, 16 * (i % 7 == 6 ? 192 : 64)) << layers[i].name;
    EXPECT_EQ(layers[i].products, layers[i].weights * 16) << layers[i].name;
  }
  EXPECT_EQ(layers[7].name, "model.layers.1.self_attn.q_proj");
  EXPECT_EQ(layers[14].name, "lm_head");
}

class Twice : public torch::nn::Module {
 public:
  Twice() { register_module("fc", fc_); }
  at::Tensor forward(const at::Tensor& x) { return fc_->forward(fc_->forward(x)); }

 private:
  torch::nn::Linear fc_{3, 3};
};

TEST(LayerVolumes, AWeightOfTwoLayersCountsOnce) {
  const ModelFactory factory = [] {
    const auto module = std::make_shared<Twice>();
    return Model{module, [module](const at::Tensor& x) { return module->forward(x); }, cross_entropy};
  };
  const std::vector<LayerVolume> layers = layer_volumes(factory, {{3}, 3, false});
  ASSERT_EQ(layers.size(), 2u);
  EXPECT_EQ(layers[0].weights, 9);
  EXPECT_EQ(layers[1].weights, 0);
  EXPECT_EQ(layers[1].inputs, 3);
}

TEST(LayerVolumes, AfterwardsLayersComputeAgain) {
  volumes_of(named("lenet5"));
  torch::manual_seed(2);
  const ModelShape shape = usual_shape(named("lenet5"));
  const Model model = zoo_model(named("lenet5"), shape)();
  EXPECT_GT(model.module->parameters().front().abs().sum().item<double>(), 0);
  EXPECT_GT(model.forward(torch::rand({1, 1, 28, 28})).std().item<double>(), 0);
}

}  // namespace
}  // namespace starling
