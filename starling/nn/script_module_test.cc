#include "starling/nn/script_module.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>
#include <torch/types.h>

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "starling/base/error.h"
#include "starling/nn/state.h"

namespace starling {
namespace {

using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

// Two layers with one weight in common, a buffer, and an output of two tensors.
torch::jit::Module two_layers() {
  torch::jit::Module net("net"), first("first"), second("second");
  const at::Tensor tied = torch::arange(4.0).reshape({2, 2}).set_requires_grad(true);
  first.register_parameter("weight", tied, false);
  second.register_parameter("weight", tied, false);
  second.register_parameter("bias", torch::ones({2}).set_requires_grad(false), false);
  second.register_buffer("seen", torch::zeros({1}));
  net.register_module("first", first);
  net.register_module("second", second);
  net.register_attribute("training", c10::BoolType::get(), true);
  net.define(R"(
def forward(self, x, y):
    h = torch.matmul(x, self.first.weight)
    if self.training:
        h = h + 1.
    return h, torch.matmul(y, self.second.weight) + self.second.bias
)");
  return net;
}

std::string message_of(const std::string& path) {
  try {
    const ScriptModule module(path);
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

class ScriptModuleFile : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("script-module-" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string path(const char* name) const { return (folder_ / name).string(); }

 private:
  std::filesystem::path folder_;
};

TEST(ScriptModule, HasTheTensorsOfTheScriptUnderTheirNames) {
  const ScriptModule module(two_layers());
  std::vector<std::string> names;
  for (const auto& [name, tensor] : state_of(module)) names.push_back(name);
  EXPECT_THAT(names, UnorderedElementsAre("first.weight", "second.bias", "second.seen"));
  EXPECT_TRUE(module.named_parameters()["first.weight"].requires_grad());
  EXPECT_FALSE(module.named_parameters()["second.bias"].requires_grad());
}

TEST(ScriptModule, ComputesWithTheTensorsThatItHasNow) {
  ScriptModule module(two_layers());
  const std::vector<at::Tensor> inputs = {torch::ones({1, 2}), torch::ones({1, 2})};
  EXPECT_TRUE(module.forward(inputs)[0].equal(torch::tensor({{3.0, 5.0}})));
  module.named_parameters()["first.weight"].set_data(torch::eye(2));
  const auto outputs = module.forward(inputs);
  EXPECT_TRUE(outputs[0].equal(torch::tensor({{2.0, 2.0}})));
  EXPECT_TRUE(outputs[1].equal(torch::tensor({{2.0, 2.0}})));
  (outputs[0].sum() + outputs[1].sum()).backward();
  EXPECT_TRUE(module.named_parameters()["first.weight"].grad().equal(torch::full({2, 2}, 2.0)));
}

TEST(ScriptModule, EvaluationModeReachesTheScript) {
  ScriptModule module(two_layers());
  module.eval();
  EXPECT_TRUE(
      module.forward({torch::ones({1, 2}), torch::ones({1, 2})})[0].equal(torch::tensor({{2.0, 4.0}})));
}

TEST_F(ScriptModuleFile, IsSavedWithItsNewValues) {
  ScriptModule module(two_layers());
  module.named_parameters()["first.weight"].set_data(torch::eye(2));
  module.save_script(path("net.pt"));
  auto read = torch::jit::load(path("net.pt"));
  EXPECT_TRUE(read.attr("first").toModule().attr("weight").toTensor().equal(torch::eye(2)));
  EXPECT_TRUE(ScriptModule(path("net.pt")).is_training());
}

TEST_F(ScriptModuleFile, WhatCannotBeReadIsNamed) {
  EXPECT_THAT(message_of(path("none.pt")),
              HasSubstr("none.pt: this is not a file that torch.jit.save() wrote"));
  std::ofstream(path("text.pt")) << "not a module";
  EXPECT_THAT(message_of(path("text.pt")),
              HasSubstr("text.pt: this is not a file that torch.jit.save() wrote"));
  torch::jit::Module constant("constant");
  constant.define("def forward(self, x):\n    return x + 1.\n");
  constant.save(path("constant.pt"));
  EXPECT_THAT(message_of(path("constant.pt")), HasSubstr("save the module before it is frozen"));
}

TEST(ScriptModule, AResultWithoutTensorsIsRefused) {
  torch::jit::Module net("net");
  net.register_parameter("w", torch::ones({1}), false);
  net.define("def forward(self, x):\n    return 3\n");
  ScriptModule module(net);
  EXPECT_THROW(module.forward({torch::ones({1})}), ConfigError);
}

}  // namespace
}  // namespace starling
