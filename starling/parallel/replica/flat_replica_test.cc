#include "starling/parallel/replica/flat_replica.h"

#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include "starling/base/error.h"

namespace starling {
namespace {

struct NormNet : torch::nn::Module {
  torch::nn::Linear first{register_module("first", torch::nn::Linear(4, 6))};
  torch::nn::BatchNorm1d norm{register_module("norm", torch::nn::BatchNorm1d(6))};
  torch::nn::Linear last{register_module("last", torch::nn::Linear(6, 3))};
};

Model norm_net() {
  const auto module = std::make_shared<NormNet>();
  Model model;
  model.module = module;
  model.forward = [m = module.get()](const at::Tensor& x) { return m->last(m->norm(m->first(x))); };
  model.loss = [](const at::Tensor& y, const at::Tensor& t) {
    return torch::nn::functional::cross_entropy(y, t);
  };
  return model;
}

Batch samples() {
  torch::manual_seed(7);
  return {torch::randn({8, 4}), torch::randint(3, {8}, torch::kLong)};
}

FlatReplica replica() {
  OptimizerSpec spec;
  return FlatReplica(norm_net, make_update_rule(spec), {});
}

TEST(FlatReplica, MeasuringALossChangesNothing) {
  FlatReplica flat = replica();
  flat.forward_backward(samples(), 1);
  std::vector<at::Tensor> before = {flat.parameters().clone(), flat.gradients().clone()};
  for (const NamedTensor& b : flat.replica().buffers) before.push_back(b.tensor.clone());
  EXPECT_GT(flat.loss_of(samples()), 0);
  std::vector<at::Tensor> after = {flat.parameters(), flat.gradients()};
  for (const NamedTensor& b : flat.replica().buffers) after.push_back(b.tensor);
  ASSERT_EQ(before.size(), after.size());
  for (size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(at::equal(before[i], after[i])) << i;
  EXPECT_TRUE(flat.replica().model.module->is_training());
}

TEST(FlatReplica, ShowsOtherParametersAndPutsItsOwnBack) {
  FlatReplica flat = replica();
  const at::Tensor own = flat.parameters().clone();
  const double loss = flat.loss_of(samples());
  flat.show(own * 0);
  EXPECT_NEAR(flat.loss_of(samples()), std::log(3.0), 1e-6);  // all classes are equally likely
  flat.show(own * 2);
  flat.hide();
  EXPECT_TRUE(at::equal(flat.parameters(), own));
  EXPECT_EQ(flat.loss_of(samples()), loss);
}

TEST(FlatReplica, TensorsByNameComeBackAndMissingOnesAreNamed) {
  FlatReplica flat = replica();
  std::map<std::string, at::Tensor> tensors;
  flat.unflatten(flat.parameters(), "x@1/", tensors);
  EXPECT_EQ(tensors.at("x@1/last.weight").sizes(), (std::vector<int64_t>{3, 6}));
  at::Tensor copy = at::zeros_like(flat.parameters());
  flat.flatten(tensors, "x@1/", copy);
  EXPECT_TRUE(at::equal(copy, flat.parameters()));
  tensors.erase("x@1/last.weight");
  try {
    flat.flatten(tensors, "x@1/", copy);
    FAIL() << "a missing tensor was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCheckpoint);
    EXPECT_NE(std::string(error.what()).find("x@1/last.weight"), std::string::npos);
  }
}

}  // namespace
}  // namespace starling
