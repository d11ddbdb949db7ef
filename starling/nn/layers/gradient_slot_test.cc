#include "starling/nn/layers/gradient_slot.h"

#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include "starling/nn/layers/direct_linear.h"

namespace starling {
namespace {

struct Net : torch::nn::Module {
  torch::nn::Linear first{nullptr}, second{nullptr};
  at::Tensor unused;
  Net() {
    first = register_module("first", torch::nn::Linear(8, 8));
    second = register_module("second", torch::nn::Linear(8, 4));
    unused = register_parameter("unused", torch::ones({3}));
  }
  // The forward pass uses `first` twice, so its gradient has two parts.
  at::Tensor forward(const at::Tensor& x) { return second(torch::relu(first(torch::relu(first(x))))); }
};

std::vector<at::Tensor> plain_gradients(Net& net, const at::Tensor& x) {
  net.forward(x).square().sum().backward();
  std::vector<at::Tensor> gradients;
  for (auto& p : net.parameters()) {
    gradients.push_back(p.grad().defined() ? p.grad().clone() : torch::zeros_like(p));
    p.mutable_grad().reset();
  }
  return gradients;
}

class Slots : public ::testing::TestWithParam<bool> {};

TEST_P(Slots, HoldTheGradientsOfPlainBackward) {
  torch::manual_seed(1);
  Net net;
  net.to(torch::kFloat64);
  const at::Tensor x = torch::randn({5, 8}, torch::kFloat64);
  const auto expected = plain_gradients(net, x);

  std::unique_ptr<DirectLinear> direct;
  if (GetParam()) direct = std::make_unique<DirectLinear>();
  const auto parameters = net.parameters();
  std::vector<int> filled(parameters.size(), 0);
  std::vector<GradientSlot::Installed> slots;
  for (size_t i = 0; i < parameters.size(); ++i) {
    slots.push_back(GradientSlot::install(parameters[i], [&filled, i] { ++filled[i]; }));
    slots[i].slot->bind(torch::full_like(parameters[i], 99));
  }
  for (int pass = 0; pass < 2; ++pass) {
    for (auto& s : slots) s.slot->begin();
    net.forward(x).square().sum().backward();
    for (auto& s : slots) s.slot->fill_unused();
    for (size_t i = 0; i < parameters.size(); ++i) {
      EXPECT_TRUE(torch::allclose(slots[i].slot->place(), expected[i], 1e-13, 1e-13)) << i;
      EXPECT_FALSE(parameters[i].grad().defined());
      EXPECT_EQ(filled[i], pass + 1);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(PlainAndDirect, Slots, ::testing::Bool());

TEST(Slots, SparseGradientsBecomeDense) {
  torch::nn::Embedding table(torch::nn::EmbeddingOptions(6, 3).sparse(true));
  const at::Tensor words = torch::tensor({{1, 4, 1}, {5, 1, 0}});
  table(words).square().sum().backward();
  ASSERT_TRUE(table->weight.grad().is_sparse());
  const at::Tensor expected = table->weight.grad().to_dense().clone();
  table->weight.mutable_grad().reset();
  auto installed = GradientSlot::install(table->weight, [] {});
  installed.slot->bind(torch::full_like(table->weight, 99));
  for (int parts : {1, 2}) {
    installed.slot->begin();
    for (int part = 0; part < parts; ++part) {
      installed.slot->expect_more(part + 1 < parts);
      table(words).square().sum().backward();
    }
    EXPECT_TRUE(torch::allclose(installed.slot->place(), expected * parts)) << parts;
    EXPECT_FALSE(table->weight.grad().defined());
  }
}

TEST(Slots, WithThreeDimensionalInputAndNoBias) {
  DirectLinear direct;
  torch::nn::Linear layer(torch::nn::LinearOptions(6, 5).bias(false));
  const at::Tensor x = torch::randn({2, 3, 6}).requires_grad_();
  layer(x).sum().backward();
  const at::Tensor expected = layer->weight.grad().clone(), expected_x = x.grad().clone();
  layer->weight.mutable_grad().reset();
  x.mutable_grad().reset();
  auto installed = GradientSlot::install(layer->weight, [] {});
  installed.slot->bind(torch::empty_like(layer->weight));
  installed.slot->begin();
  layer(x).sum().backward();
  EXPECT_TRUE(torch::allclose(installed.slot->place(), expected));
  EXPECT_TRUE(torch::allclose(x.grad(), expected_x));
}

}  // namespace
}  // namespace starling
