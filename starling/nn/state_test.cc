#include "starling/nn/state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <filesystem>

#include "starling/base/error.h"
#include "starling/nn/model.h"

namespace starling {
namespace {

using ::testing::HasSubstr;

Model lenet() {
  ModelSpec spec;
  spec.name = "lenet5";
  return zoo_model(spec, {{1, 28, 28}, 10, false})();
}

Model gpt() {
  ModelSpec spec;
  spec.name = "gpt";
  spec.layers = 2;
  spec.width = 16;
  spec.heads = 2;
  spec.tokens = 8;
  return zoo_model(spec, {{8}, 30, true})();
}

Model llama(bool tied) {
  ModelSpec spec;
  spec.name = "llama";
  spec.layers = 1;
  spec.width = 16;
  spec.heads = 2;
  spec.tokens = 8;
  spec.tied = tied;
  return zoo_model(spec, {{8}, 30, true})();
}

TensorFile copy_of(const Model& model) {
  TensorFile file;
  for (const auto& [name, tensor] : state_of(*model.module)) file.tensors[name] = tensor.clone();
  return file;
}

void expect_same(const TensorMap& a, const TensorMap& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) EXPECT_TRUE(torch::equal(tensor, b.at(name))) << name;
}

std::string error_of(const Model& model, const TensorFile& file, bool strict = true) {
  const TensorFile before = copy_of(model);
  try {
    load_into(*model.module, file, strict, "w.safetensors");
  } catch (const DataError& e) {
    expect_same(before.tensors, state_of(*model.module));  // nothing was copied
    return e.what();
  }
  return "loaded without an error";
}

TEST(State, LoadsWhatWasSaved) {
  const std::string path =
      std::filesystem::temp_directory_path() / ("starling-state-" + std::to_string(::getpid()));
  const Model a = lenet();
  for (const char* end : {".safetensors", ".safetensors.index.json", ".pt", ".pth"}) {
    const Model b = lenet();
    save_model(*a.module, path + end);
    load_model(*b.module, path + end);
    expect_same(state_of(*a.module), state_of(*b.module));
  }
  for (const char* end :
       {".safetensors", ".safetensors.index.json", "-00001-of-00001.safetensors", ".pt", ".pth"})
    std::filesystem::remove(path + end);
}

TEST(State, ConvertsBetweenFloatingPointTypes) {
  const Model a = lenet(), b = lenet();
  b.module->to(torch::kDouble);
  load_into(*b.module, copy_of(a));
  EXPECT_TRUE(torch::equal(state_of(*a.module).at("fc1.weight").to(torch::kDouble),
                           state_of(*b.module).at("fc1.weight")));
}

TEST(State, AnotherModelNamesTheFirstDifference) {
  TensorFile file = copy_of(lenet());
  file.tensors["fc3.weight"] = torch::zeros({7, 84});
  EXPECT_THAT(error_of(lenet(), file),
              HasSubstr("w.safetensors: holds the weights of another model: tensor \"fc3.weight\" "
                        "is [7, 84] in the file and [10, 84] in the model"));
  EXPECT_THAT(error_of(lenet(), file, false), HasSubstr("[7, 84]"));

  file = copy_of(lenet());
  file.tensors["fc9.weight"] = file.tensors.at("fc3.weight");
  EXPECT_THAT(error_of(lenet(), file), HasSubstr("\"fc9.weight\" [10, 84] has no place"));
  EXPECT_EQ(error_of(lenet(), file, false), "loaded without an error");

  file = copy_of(lenet());
  file.tensors.erase("conv1.bias");
  EXPECT_THAT(error_of(lenet(), file), HasSubstr("no tensor \"conv1.bias\" [6]"));
  EXPECT_EQ(error_of(lenet(), file, false), "loaded without an error");

  file = copy_of(lenet());
  file.tensors["conv1.bias"] = torch::zeros({6}, torch::kLong);
  EXPECT_THAT(error_of(lenet(), file), HasSubstr("Long in the file"));
  EXPECT_THAT(error_of(lenet(), copy_of(gpt()), false), HasSubstr("shares no tensor name"));
}

TEST(State, GptLoadsWithAndWithoutPrefixMasksAndTiedHead) {
  const Model a = gpt(), b = gpt();
  const TensorFile saved = copy_of(a);
  TensorFile bare;
  for (const auto& [name, tensor] : saved.tensors)
    bare.tensors[name.substr(std::string("transformer.").size())] = tensor;
  bare.tensors["h.0.attn.bias"] = torch::ones({1, 1, 8, 8});
  load_into(*b.module, bare);
  expect_same(saved.tensors, state_of(*b.module));

  TensorFile tied = saved;
  tied.tensors["lm_head.weight"] = saved.tensors.at("transformer.wte.weight");
  EXPECT_EQ(error_of(gpt(), tied), "loaded without an error");
  tied.tensors["lm_head.weight"] = tied.tensors["lm_head.weight"] + 1;
  EXPECT_THAT(error_of(gpt(), tied), HasSubstr("lm_head.weight is not the token embedding"));

  TensorFile twice = saved;
  twice.tensors["wte.weight"] = saved.tensors.at("transformer.wte.weight");
  EXPECT_THAT(error_of(gpt(), twice), HasSubstr("occurs twice"));
}

TEST(State, LlamaLoadsWithFrequenciesAndTheHeadThatModelTiedAsksFor) {
  TensorFile untied = copy_of(llama(false)), tied = copy_of(llama(true));
  untied.tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch::ones({4});
  const Model loaded = llama(false);
  load_into(*loaded.module, untied);
  EXPECT_TRUE(state_of(*loaded.module).at("lm_head.weight").equal(untied.tensors.at("lm_head.weight")));

  EXPECT_THAT(error_of(llama(true), untied),
              HasSubstr("not the token embedding, which this llama (model.tied = true) uses"));
  EXPECT_THAT(error_of(llama(false), tied),
              HasSubstr("no tensor \"lm_head.weight\" [30, 16], so its output layer is the token embedding "
                        "(model.tied = true)"));
  tied.tensors["lm_head.weight"] = tied.tensors.at("model.embed_tokens.weight");
  EXPECT_EQ(error_of(llama(true), tied), "loaded without an error");
  EXPECT_THAT(error_of(gpt(), untied), HasSubstr("holds the weights of another model"));
}

}  // namespace
}  // namespace starling
