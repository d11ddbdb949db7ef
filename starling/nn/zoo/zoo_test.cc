#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>

#include "starling/base/error.h"
#include "starling/nn/blocks.h"
#include "starling/nn/model.h"
#include "starling/nn/state.h"
#include "starling/testing/error_of.h"

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

// Two keys and values for four queries.
ModelSpec small_llama() {
  ModelSpec spec = small_gpt();
  spec.name = "llama";
  spec.kv_heads = 2;
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

TEST(Zoo, NamesAndShapesAreThoseOfLlama) {
  ModelSpec spec = small_llama();
  const TensorMap state = state_of(*zoo_model(spec, text(16, 50))().module);
  EXPECT_EQ(state.size(), 1u + 2 * 9 + 2);
  const std::pair<const char*, std::vector<int64_t>> shapes[] = {
      {"model.embed_tokens.weight", {50, 32}},
      {"model.layers.1.self_attn.q_proj.weight", {32, 32}},
      {"model.layers.0.self_attn.k_proj.weight", {16, 32}},
      {"model.layers.0.self_attn.v_proj.weight", {16, 32}},
      {"model.layers.0.self_attn.o_proj.weight", {32, 32}},
      {"model.layers.0.mlp.gate_proj.weight", {128, 32}},  // 8/3 of 32 and up to a multiple of 64
      {"model.layers.0.mlp.up_proj.weight", {128, 32}},
      {"model.layers.0.mlp.down_proj.weight", {32, 128}},
      {"model.layers.0.input_layernorm.weight", {32}},
      {"model.layers.1.post_attention_layernorm.weight", {32}},
      {"model.norm.weight", {32}},
      {"lm_head.weight", {50, 32}}};
  for (const auto& [name, shape] : shapes) EXPECT_EQ(state.at(name).sizes(), shape) << name;
  EXPECT_NEAR(state.at("model.layers.1.mlp.down_proj.weight").std().item<double>(), 0.02, 2e-3);
  EXPECT_TRUE(state.at("model.norm.weight").equal(torch::ones({32})));

  spec.tied = true;
  spec.kv_heads = 0;
  spec.hidden = 40;
  const TensorMap tied = state_of(*zoo_model(spec, text(16, 50))().module);
  EXPECT_EQ(tied.count("lm_head.weight"), 0u);
  EXPECT_EQ(tied.at("model.layers.0.self_attn.k_proj.weight").sizes(), at::IntArrayRef({32, 32}));
  EXPECT_EQ(tied.at("model.layers.0.mlp.down_proj.weight").sizes(), at::IntArrayRef({32, 40}));
}

// The proportions are those of a block of Llama 2 7B.
TEST(Zoo, LlamaHasTheParametersOfItsLayers) {
  ModelSpec spec = small_llama();
  spec.layers = 1;
  spec.width = 256;
  spec.heads = 4;
  spec.kv_heads = 0;
  spec.hidden = 688;  // 11008 / 16, as 256 is 4096 / 16
  const int64_t block = 4 * 256 * 256 + 3 * 256 * 688 + 2 * 256;
  EXPECT_EQ(parameters_of(zoo_model(spec, text(16, 50))()), 2 * 50 * 256 + block + 256);
}

TEST(Zoo, StemFollowsTheImages) {
  EXPECT_EQ(state_of(*zoo_model(named("resnet18"), kCifar)().module).at("conv1.weight").size(2), 3);
  ModelSpec spec = named("resnet18");
  spec.stem = "imagenet";
  EXPECT_EQ(state_of(*zoo_model(spec, kCifar)().module).at("conv1.weight").size(2), 7);
  spec.stem = "tiny";
  EXPECT_THAT(error_of<ConfigError>([&] { zoo_model(spec, kCifar); }), HasSubstr("model.stem"));
}

TEST(Zoo, InitializationHasTheScalesOfTheOriginals) {
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
  EXPECT_THAT(error_of<ConfigError>([] { zoo_model(named("resnet81"), kMnist); }),
              HasSubstr("did you mean \"resnet18\""));
  EXPECT_THAT(error_of<ConfigError>([] { zoo_model(named("lenet"), kMnist); }),
              HasSubstr("did you mean \"lenet5\""));
  EXPECT_THAT(error_of<ConfigError>([] { zoo_model(named("transformerxl"), kMnist); }),
              HasSubstr("lists: mlp"));
}

TEST(Zoo, ModelThatDoesNotFitTheDataIsRefused) {
  ModelSpec mlp = named("mlp");
  EXPECT_THAT(error_of<ConfigError>([&] { zoo_model(mlp, kCifar); }), HasSubstr("write 3072 first"));
  mlp.widths = {784, 7};
  EXPECT_THAT(error_of<ConfigError>([&] { zoo_model(mlp, kMnist); }), HasSubstr("write 10 last"));
  EXPECT_THAT(error_of<ConfigError>([] { zoo_model(named("lenet5"), ModelShape{{1, 8, 8}, 10, false}); }),
              HasSubstr("8×8"));
  EXPECT_THAT(error_of<ConfigError>([] { zoo_model(named("resnet18"), text(16, 50)); }),
              HasSubstr("use model.name = gpt or llama"));
  EXPECT_THAT(error_of<ConfigError>([] { zoo_model(named("gpt"), kMnist); }), HasSubstr("gpt reads text"));
  EXPECT_THAT(error_of<ConfigError>([] { zoo_model(small_gpt(), text(17, 50)); }), HasSubstr("17 tokens"));
  ModelSpec gpt = small_gpt();
  gpt.heads = 5;
  EXPECT_THAT(error_of<ConfigError>([&] { zoo_model(gpt, text(16, 50)); }), HasSubstr("model.heads"));
  ModelSpec llama = small_llama();
  EXPECT_THAT(error_of<ConfigError>([&] { zoo_model(llama, kMnist); }), HasSubstr("llama reads text"));
  llama.kv_heads = 3;
  EXPECT_THAT(error_of<ConfigError>([&] { zoo_model(llama, text(16, 50)); }),
              HasSubstr("model.kv_heads = 3 does not divide model.heads = 4"));
  llama.kv_heads = 2;
  llama.width = 12;
  EXPECT_THAT(error_of<ConfigError>([&] { zoo_model(llama, text(16, 50)); }),
              HasSubstr("a head of 3 numbers"));
  ModelSpec few = named("lenet5");
  few.classes = 5;
  EXPECT_THAT(error_of<ConfigError>([&] { zoo_model(few, kMnist); }),
              HasSubstr("model.classes: is 5, but the data has 10"));
}

void expect_gradients(const Model& model, const at::Tensor& input, const at::Tensor& target,
                      const std::string& name) {
  const at::Tensor loss = model.loss(model.forward(input), target);
  loss.backward();
  EXPECT_TRUE(std::isfinite(loss.item<double>())) << name;
  for (const auto& p : model.module->named_parameters()) {
    EXPECT_EQ(p.value().grad().defined(), p.value().requires_grad()) << name << " " << p.key();
  }
}

// A network for ImageNet: its number of parameters with 1000 classes, and some shapes by name.
struct Large {
  std::string name;
  int64_t least_pixels, parameters;
  std::vector<std::pair<std::string, std::vector<int64_t>>> shapes;
};

const std::vector<Large>& large_networks() {
  static const std::vector<Large> networks = {
      {"alexnet",
       63,
       62378344,
       {{"features.3.weight", {256, 96, 5, 5}},
        {"features.10.bias", {256}},
        {"classifier.1.weight", {4096, 9216}},
        {"classifier.6.weight", {1000, 4096}}}},
      {"nin", 39, 7595176, {{"conv1.weight", {96, 3, 11, 11}}, {"cccp8.weight", {1000, 1024, 1, 1}}}},
      {"googlenet",
       31,
       13378280,  // as in Caffe's bvlc_googlenet
       {{"conv1.conv.weight", {64, 3, 7, 7}},
        {"inception3a.branch3.1.conv.weight", {32, 16, 5, 5}},
        {"inception5b.branch4.1.conv.bias", {128}},
        {"aux2.fc1.weight", {1024, 2048}}}},
      {"vgg19",
       32,
       143667240,  // as in torchvision
       {{"features.34.weight", {512, 512, 3, 3}}, {"classifier.3.weight", {4096, 4096}}}},
  };
  return networks;
}

bool is_large(const std::string& name) {
  return std::any_of(large_networks().begin(), large_networks().end(),
                     [&](const Large& network) { return network.name == name; });
}

// Every model gives a finite loss and gradients for all parameters in each dtype.
TEST(Zoo, TrainsInFp32Fp64AndBf16) {
  for (const ZooEntry& entry : zoo()) {
    if (is_large(entry.name)) continue;  // tested below
    ModelSpec spec = entry.name == "gpt"     ? small_gpt()
                     : entry.name == "llama" ? small_llama()
                                             : named(entry.name);
    const bool is_text = spec.reads_text();
    spec.widths = {256, 32, 10};
    spec.stem = "imagenet";
    const ModelFactory make = zoo_model(spec, is_text ? text(16, 50) : ModelShape{{1, 16, 16}, 10, false});
    for (const auto dtype : {torch::kFloat, torch::kDouble, torch::kBFloat16}) {
      const Model model = make();
      model.module->to(dtype);
      const at::Tensor input =
          is_text ? torch::randint(0, 50, {2, 16}) : torch::randn({2, 1, 16, 16}).to(dtype);
      const at::Tensor target = is_text ? torch::randint(0, 50, {2, 16}) : torch::randint(0, 10, {2});
      expect_gradients(model, input, target, entry.name);
      for (const auto& p : model.module->named_parameters()) {
        EXPECT_EQ(p.value().scalar_type(), dtype) << entry.name << " " << p.key();
      }
    }
  }
}

class LargeNetworks : public ::testing::TestWithParam<Large> {};

// Each network trains on the smallest picture that it takes and refuses a smaller one. The test uses only
// fp32 and leaves out the gradient of VGG's first fully connected layer, because these have hundreds of MB.
TEST_P(LargeNetworks, HaveTheSizesOfTheOriginalsAndTrain) {
  const Large& network = GetParam();
  const int64_t least = network.least_pixels;
  const ModelSpec spec = named(network.name);
  EXPECT_THAT(error_of<ConfigError>([&] { zoo_model(spec, ModelShape{{3, least, least - 1}, 1000, false}); }),
              HasSubstr(fmt::format("{} needs pictures of at least {}", network.name, least)));
  torch::manual_seed(1);
  const Model model = zoo_model(spec, ModelShape{{3, least, least}, 1000, false})();
  EXPECT_EQ(parameters_of(model), network.parameters);
  const TensorMap state = state_of(*model.module);
  for (const auto& [name, shape] : network.shapes) EXPECT_EQ(state.at(name).sizes(), shape) << name;
  for (const auto& p : model.module->parameters()) p.set_requires_grad(p.numel() < 100'000'000);
  expect_gradients(model, torch::randn({2, 3, least, least}), torch::randint(0, 1000, {2}), network.name);

  EXPECT_EQ(tensors_of_blocks(model).size(), model.blocks.size());  // every parameter is in a block
  const at::Tensor x = torch::randn({1, 3, least, least});
  const torch::NoGradGuard no_grad;
  for (const bool training : {true, false}) {
    model.module->train(training);
    const Tensors y = run_blocks(model.blocks, 0, model.blocks.size(), {x});
    ASSERT_EQ(y.size(), 1u);
    EXPECT_TRUE(torch::equal(y[0], model.forward(x)));
  }
}

INSTANTIATE_TEST_SUITE_P(Zoo, LargeNetworks, ::testing::ValuesIn(large_networks()),
                         [](const auto& info) { return info.param.name; });

TEST(Zoo, GoogLeNetWeighsItsAuxiliaryHeads) {
  torch::manual_seed(4);
  const Model model = zoo_model(named("googlenet"), ModelShape{{3, 32, 32}, 5, false})();
  const at::Tensor x = torch::randn({2, 3, 32, 32}), target = torch::tensor({1, 4});
  const at::Tensor heads = model.forward(x);
  ASSERT_EQ(heads.sizes(), at::IntArrayRef({2, 3, 5}));
  const auto loss = [&](int64_t head) { return cross_entropy(heads.select(1, head), target).item<double>(); };
  EXPECT_NEAR(model.loss(heads, target).item<double>(), loss(0) + 0.3 * (loss(1) + loss(2)), 1e-6);
  model.module->eval();
  const at::Tensor answer = model.forward(x);
  EXPECT_TRUE(torch::equal(answer, heads.select(1, 0)));
  EXPECT_NEAR(model.loss(answer, target).item<double>(), loss(0), 1e-6);
}

TEST(Zoo, AttentionOfTextModelsIsCausal) {
  for (const ModelSpec& spec : {small_gpt(), small_llama()}) {
    torch::manual_seed(3);
    const Model model = zoo_model(spec, text(16, 50))();
    const torch::NoGradGuard no_grad;
    at::Tensor tokens = torch::randint(0, 50, {1, 16});
    const at::Tensor before = model.forward(tokens);
    tokens[0][9] = (tokens[0][9].item<int64_t>() + 1) % 50;
    const at::Tensor after = model.forward(tokens);
    EXPECT_TRUE(torch::allclose(before.narrow(1, 0, 9), after.narrow(1, 0, 9), 0, 1e-6)) << spec.name;
    EXPECT_FALSE(torch::allclose(before.narrow(1, 9, 1), after.narrow(1, 9, 1), 0, 1e-6)) << spec.name;
  }
}

// A model.kv_heads below model.heads is the model whose keys and values are repeated.
TEST(Zoo, GroupedQueriesAreRepeatedKeysAndValues) {
  torch::manual_seed(8);
  ModelSpec spec = small_llama();
  const Model grouped = zoo_model(spec, text(16, 50))();
  spec.kv_heads = 4;
  const Model whole = zoo_model(spec, text(16, 50))();
  TensorFile file;
  for (const auto& [name, tensor] : state_of(*grouped.module)) {
    const bool shared = name.find("k_proj") != std::string::npos || name.find("v_proj") != std::string::npos;
    file.tensors[name] =
        shared ? tensor.view({2, 1, 8, 32}).expand({2, 2, 8, 32}).reshape({32, 32}) : tensor.clone();
  }
  load_into(*whole.module, file);
  const torch::NoGradGuard no_grad;
  const at::Tensor tokens = torch::randint(0, 50, {2, 16});
  EXPECT_TRUE(torch::allclose(grouped.forward(tokens), whole.forward(tokens), 0, 1e-6));
}

TEST(Zoo, CrossEntropyOfTokensIsTheMeanOverAll) {
  const at::Tensor logits = torch::randn({2, 3, 5}, torch::kDouble);
  const at::Tensor target = torch::randint(0, 5, {2, 3});
  const at::Tensor by_hand = -logits.log_softmax(-1).gather(2, target.unsqueeze(-1)).mean();
  EXPECT_NEAR(cross_entropy(logits, target).item<double>(), by_hand.item<double>(), 1e-12);
}

}  // namespace
}  // namespace starling
