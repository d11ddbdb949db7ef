#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "starling/base/error.h"
#include "starling/nn/model.h"
#include "starling/nn/state.h"

namespace starling {
namespace {

using ::testing::HasSubstr;

const ModelShape kMnist{{1, 28, 28}, 10, false};
const ModelShape kCifar{{3, 32, 32}, 10, false};
const ModelShape kImagenet{{3, 224, 224}, 1000, false};

ModelSpec named(const std::string& name) {
  ModelSpec spec;
  spec.name = name;
  return spec;
}

ModelSpec small_gpt() {
  ModelSpec spec = named("gpt");
  spec.layers = 2;
  spec.width = 32;
  spec.heads = 4;
  spec.tokens = 16;
  return spec;
}

ModelShape text(int64_t tokens, int64_t vocabulary) {
  return {{tokens}, vocabulary, true};
}

int64_t parameters_of(const Model& model) {
  int64_t n = 0;
  for (const auto& p : model.module->parameters()) n += p.numel();
  return n;
}

std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "nothing thrown";
}

TEST(Zoo, ParameterCountsAreThoseOfTorchvision) {
  EXPECT_EQ(parameters_of(zoo_model(named("resnet18"), kImagenet)()), 11689512);
  EXPECT_EQ(parameters_of(zoo_model(named("resnet34"), kImagenet)()), 21797672);
  EXPECT_EQ(parameters_of(zoo_model(named("resnet50"), kImagenet)()), 25557032);
  EXPECT_EQ(parameters_of(zoo_model(named("lenet5"), kMnist)()), 61706);
  ModelSpec mlp = named("mlp");
  mlp.widths = {784, 4096, 4096, 10};
  EXPECT_EQ(parameters_of(zoo_model(mlp, kMnist)()), 784 * 4096 + 4096 + 4096 * 4096 + 4096 + 40960 + 10);
}

TEST(Zoo, Gpt2SmallHasTheParametersOfGpt2) {
  ModelSpec spec = named("gpt");
  spec.layers = 12;
  spec.width = 768;
  spec.heads = 12;
  spec.tokens = 1024;
  EXPECT_EQ(parameters_of(zoo_model(spec, text(1024, 50257))()), 124439808);
}

TEST(Zoo, NamesAndShapesAreThoseOfTorchvision) {
  const TensorMap state = state_of(*zoo_model(named("resnet50"), kImagenet)().module);
  EXPECT_EQ(state.size(), 320u);  // 161 parameters, 53 × 3 buffers
  EXPECT_EQ(state.at("conv1.weight").sizes(), at::IntArrayRef({64, 3, 7, 7}));
  EXPECT_EQ(state.at("bn1.running_mean").sizes(), at::IntArrayRef({64}));
  EXPECT_EQ(state.at("bn1.num_batches_tracked").scalar_type(), at::kLong);
  EXPECT_EQ(state.at("layer1.0.downsample.0.weight").sizes(), at::IntArrayRef({256, 64, 1, 1}));
  EXPECT_EQ(state.at("layer1.0.downsample.1.running_var").sizes(), at::IntArrayRef({256}));
  EXPECT_EQ(state.at("layer4.2.conv3.weight").sizes(), at::IntArrayRef({2048, 512, 1, 1}));
  EXPECT_EQ(state.at("fc.weight").sizes(), at::IntArrayRef({1000, 2048}));
  EXPECT_EQ(state_of(*zoo_model(named("resnet18"), kImagenet)().module).size(), 122u);
}

TEST(Zoo, NamesAndShapesAreThoseOfGpt2) {
  const TensorMap state = state_of(*zoo_model(small_gpt(), text(16, 50))().module);
  EXPECT_EQ(state.size(), 2u + 2 * 12 + 2);
  EXPECT_EQ(state.at("transformer.wte.weight").sizes(), at::IntArrayRef({50, 32}));
  EXPECT_EQ(state.at("transformer.wpe.weight").sizes(), at::IntArrayRef({16, 32}));
  EXPECT_EQ(state.at("transformer.h.1.ln_1.weight").sizes(), at::IntArrayRef({32}));
  EXPECT_EQ(state.at("transformer.h.0.attn.c_attn.weight").sizes(), at::IntArrayRef({32, 96}));
  EXPECT_EQ(state.at("transformer.h.0.mlp.c_fc.weight").sizes(), at::IntArrayRef({32, 128}));
  EXPECT_EQ(state.at("transformer.h.0.mlp.c_proj.bias").sizes(), at::IntArrayRef({32}));
  EXPECT_EQ(state.count("lm_head.weight"), 0u);
}

TEST(Zoo, StemFollowsTheImages) {
  EXPECT_EQ(state_of(*zoo_model(named("resnet18"), kCifar)().module).at("conv1.weight").size(2), 3);
  ModelSpec spec = named("resnet18");
  spec.stem = "imagenet";
  EXPECT_EQ(state_of(*zoo_model(spec, kCifar)().module).at("conv1.weight").size(2), 7);
  spec.stem = "tiny";
  EXPECT_THAT(message_of([&] { zoo_model(spec, kCifar); }), HasSubstr("model.stem"));
}

TEST(Zoo, InitialisationHasTheScalesOfTheOriginals) {
  torch::manual_seed(1);
  const TensorMap resnet = state_of(*zoo_model(named("resnet18"), kImagenet)().module);
  EXPECT_NEAR(resnet.at("layer2.0.conv1.weight").std().item<double>(), std::sqrt(2.0 / (128 * 9)), 1e-3);
  ModelSpec spec = small_gpt();
  spec.width = 256;
  const TensorMap gpt = state_of(*zoo_model(spec, text(16, 50))().module);
  EXPECT_NEAR(gpt.at("transformer.h.0.attn.c_attn.weight").std().item<double>(), 0.02, 1e-3);
  EXPECT_NEAR(gpt.at("transformer.h.0.attn.c_proj.weight").std().item<double>(), 0.01, 1e-3);
  EXPECT_EQ(gpt.at("transformer.h.0.attn.c_attn.bias").abs().max().item<double>(), 0.0);
}

TEST(Zoo, UnknownModelSuggestsTheNearOne) {
  EXPECT_THAT(message_of([] { zoo_model(named("resnet81"), kMnist); }),
              HasSubstr("did you mean \"resnet18\""));
  EXPECT_THAT(message_of([] { zoo_model(named("lenet"), kMnist); }), HasSubstr("did you mean \"lenet5\""));
  EXPECT_THAT(message_of([] { zoo_model(named("transformerxl"), kMnist); }), HasSubstr("lists: mlp"));
}

TEST(Zoo, ModelThatDoesNotFitTheDataIsRefused) {
  ModelSpec mlp = named("mlp");
  EXPECT_THAT(message_of([&] { zoo_model(mlp, kCifar); }), HasSubstr("write 3072 first"));
  mlp.widths = {784, 7};
  EXPECT_THAT(message_of([&] { zoo_model(mlp, kMnist); }), HasSubstr("write 10 last"));
  EXPECT_THAT(message_of([] { zoo_model(named("lenet5"), ModelShape{{1, 8, 8}, 10, false}); }),
              HasSubstr("8×8"));
  EXPECT_THAT(message_of([] { zoo_model(named("resnet18"), text(16, 50)); }),
              HasSubstr("use model.name = gpt"));
  EXPECT_THAT(message_of([] { zoo_model(named("gpt"), kMnist); }), HasSubstr("gpt reads text"));
  EXPECT_THAT(message_of([] { zoo_model(small_gpt(), text(17, 50)); }), HasSubstr("17 tokens"));
  ModelSpec gpt = small_gpt();
  gpt.heads = 5;
  EXPECT_THAT(message_of([&] { zoo_model(gpt, text(16, 50)); }), HasSubstr("model.heads"));
  ModelSpec few = named("lenet5");
  few.classes = 5;
  EXPECT_THAT(message_of([&] { zoo_model(few, kMnist); }),
              HasSubstr("model.classes: is 5, but the data has 10"));
}

// Every model gives a finite loss and gradients for all parameters in each dtype.
TEST(Zoo, TrainsInFp32Fp64AndBf16) {
  for (const ZooEntry& entry : zoo()) {
    const bool is_text = entry.name == "gpt";
    ModelSpec spec = is_text ? small_gpt() : named(entry.name);
    spec.widths = {256, 32, 10};
    spec.stem = "imagenet";
    const ModelFactory make = zoo_model(spec, is_text ? text(16, 50) : ModelShape{{1, 16, 16}, 10, false});
    for (const auto dtype : {torch::kFloat, torch::kDouble, torch::kBFloat16}) {
      const Model model = make();
      model.module->to(dtype);
      const at::Tensor input =
          is_text ? torch::randint(0, 50, {2, 16}) : torch::randn({2, 1, 16, 16}).to(dtype);
      const at::Tensor target = is_text ? torch::randint(0, 50, {2, 16}) : torch::randint(0, 10, {2});
      const at::Tensor loss = model.loss(model.forward(input), target);
      loss.backward();
      EXPECT_TRUE(std::isfinite(loss.item<double>())) << entry.name;
      for (const auto& p : model.module->named_parameters()) {
        EXPECT_TRUE(p.value().grad().defined()) << entry.name << " " << p.key();
        EXPECT_EQ(p.value().scalar_type(), dtype) << entry.name << " " << p.key();
      }
    }
  }
}

TEST(Zoo, GptAttentionIsCausal) {
  torch::manual_seed(3);
  const Model model = zoo_model(small_gpt(), text(16, 50))();
  const torch::NoGradGuard no_grad;
  at::Tensor tokens = torch::randint(0, 50, {1, 16});
  const at::Tensor before = model.forward(tokens);
  tokens[0][9] = (tokens[0][9].item<int64_t>() + 1) % 50;
  const at::Tensor after = model.forward(tokens);
  EXPECT_TRUE(torch::allclose(before.narrow(1, 0, 9), after.narrow(1, 0, 9), 0, 1e-6));
  EXPECT_FALSE(torch::allclose(before.narrow(1, 9, 1), after.narrow(1, 9, 1), 0, 1e-6));
}

TEST(Zoo, CrossEntropyOfTokensIsTheMeanOverAll) {
  const at::Tensor logits = torch::randn({2, 3, 5}, torch::kDouble);
  const at::Tensor target = torch::randint(0, 5, {2, 3});
  const at::Tensor by_hand = -logits.log_softmax(-1).gather(2, target.unsqueeze(-1)).mean();
  EXPECT_NEAR(cross_entropy(logits, target).item<double>(), by_hand.item<double>(), 1e-12);
}

}  // namespace
}  // namespace starling
