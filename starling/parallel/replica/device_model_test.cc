#include "starling/parallel/replica/device_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <utility>

#include "starling/base/error.h"
#include "starling/nn/layers/gradient_slot.h"
#include "starling/nn/layers/keyed_dropout.h"
#include "starling/parallel/replica/replica.h"
#include "starling/torch_testing/test_device.h"

namespace starling {
namespace {

struct Net : torch::nn::Module {
  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Linear full{nullptr};
  torch::Tensor unused;
  Net() {
    conv = register_module("conv", torch::nn::Conv2d(1, 2, 3));
    norm = register_module("norm", torch::nn::BatchNorm2d(2));
    full = register_module("full", torch::nn::Linear(32, 3));
    unused = register_parameter("unused", torch::zeros({2}));
  }
};

Model model() {
  const auto net = std::make_shared<Net>();
  return model_with_keys([&](const SharedKeys& keys) {
    const Dropout dropout(0.25, keys, 0);
    return Model{net,
                 [net, dropout](const at::Tensor& x) {
                   return net->full(dropout(net->norm(net->conv(x)).relu().flatten(1), net->is_training()));
                 },
                 cross_entropy};
  });
}

Batch batch() {
  torch::manual_seed(3);
  Batch batch;
  batch.input = torch::randn({5, 1, 6, 6});
  batch.target = torch::randint(3, {5});
  batch.keys = torch::arange(5, torch::kLong);
  return batch;
}

// Runs forward and backward with gradient slots, as strategies do. Returns the loss, the gradients and the
// buffers.
std::vector<at::Tensor> pass(Replica& replica) {
  std::vector<GradientSlot::Installed> slots;
  std::vector<at::Tensor> results;
  slots.reserve(replica.parameters.size());
  results.reserve(replica.parameters.size() + replica.buffers.size() + 1);
  for (const NamedTensor& p : replica.parameters) {
    results.push_back(at::full_like(p.tensor.detach(), NAN));
    slots.push_back(GradientSlot::install(p.tensor, [] {}));
    slots.back().slot->bind(results.back());
    slots.back().slot->begin();
  }
  const at::Tensor loss = batch_loss(replica.model, batch(), at::kDouble, false).mean();
  loss.backward();
  for (const auto& slot : slots) slot.slot->fill_unused();
  for (const NamedTensor& b : replica.buffers) results.push_back(b.tensor.clone());
  results.push_back(loss.detach().cpu());
  return results;
}

void expect_equal(const std::vector<at::Tensor>& actual, const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_TRUE(actual[i].is_cpu());
    EXPECT_TRUE(at::allclose(actual[i], expected[i], 1e-12, 1e-14)) << i;
  }
}

TEST(DeviceModel, GradientsAndBuffersReachTheHost) {
  Replica here = make_replica(model, at::kDouble, 1);
  Replica there = make_replica(on_device(model, test_device(1)), at::kDouble, 1);
  expect_equal(pass(there), pass(here));
}

TEST(DeviceModel, TakesTheParametersOfTheHostBeforeEachForwardPass) {
  Replica here = make_replica(model, at::kDouble, 1);
  Replica there = make_replica(on_device(model, test_device()), at::kDouble, 1);
  pass(here);
  pass(there);
  const at::NoGradGuard no_grad;
  for (Replica* replica : {&here, &there}) {
    for (NamedTensor& p : replica->parameters) p.tensor.set_data(p.tensor * 2 + 1);
    for (NamedTensor& b : replica->buffers) b.tensor.mul_(3);
  }
  const at::AutoGradMode grad(true);
  expect_equal(pass(there), pass(here));
}

TEST(DeviceModel, EvaluatesInTheModeOfTheHostModule) {
  Replica here = make_replica(model, at::kDouble, 1);
  Replica there = make_replica(on_device(model, test_device()), at::kDouble, 1);
  const at::NoGradGuard no_grad;
  const auto loss = [](Replica& replica) {
    replica.model.module->eval();
    return batch_loss(replica.model, batch(), at::kDouble, false).mean().item<double>();
  };
  EXPECT_NEAR(loss(there), loss(here), 1e-12);
  EXPECT_TRUE(at::equal(there.buffers[0].tensor, at::zeros({2}, at::kDouble)));
}

// Returns what on_device() says of a factory.
std::string refusal(const ModelFactory& factory) {
  try {
    on_device(factory, test_device())();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

Model model_of_width(int64_t width) {
  const auto net = std::make_shared<torch::nn::LinearImpl>(4, width);
  return {net, [net](const at::Tensor& x) { return net->forward(x); }, cross_entropy};
}

TEST(DeviceModel, AFactoryThatMakesTheModuleOnceIsRefused) {
  Model once = model_of_width(3);
  EXPECT_THAT(refusal([&once] { return once; }),
              ::testing::HasSubstr("the factory returns the same tensor \"weight\" the second time"));
}

TEST(DeviceModel, AFactoryThatMakesOtherModulesIsRefused) {
  int64_t width = 3;
  EXPECT_THAT(refusal([&width] { return model_of_width(width++); }),
              ::testing::HasSubstr("the factory makes another tensor \"weight\" the second time"));
  bool second = false;
  EXPECT_THAT(refusal([&second] { return std::exchange(second, true) ? model_of_width(3) : model(); }),
              ::testing::HasSubstr("the factory makes no tensor"));
}

TEST(DeviceModel, LossIsOnTheDeviceAndTheModelHasNoBlocks) {
  const Model made = on_device(model, test_device())();
  EXPECT_TRUE(made.blocks.empty());
  made.samples->keys = batch().keys;
  const at::Tensor output = made.forward(batch().input);
  EXPECT_EQ(output.device(), test_device());
  EXPECT_EQ(made.loss(output, batch().target).device(), test_device());
}

}  // namespace
}  // namespace starling
