#include "starling/nn/layers/batch_norm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <barrier>
#include <thread>

#include "starling/base/error.h"
#include "starling/nn/model.h"

namespace starling {
namespace {

using ::testing::HasSubstr;

// Sums over threads that stand for ranks, in rank order, so that all get the same bits.
class ThreadSum {
 public:
  explicit ThreadSum(int ranks) : parts_(ranks), all_here_(ranks) {}
  void operator()(int rank, at::Tensor& t) {
    parts_[rank] = t.clone();
    all_here_.arrive_and_wait();
    t.zero_();
    for (const at::Tensor& part : parts_) t.add_(part);
    all_here_.arrive_and_wait();
  }

 private:
  std::vector<at::Tensor> parts_;
  std::barrier<> all_here_;
};

void on_ranks(int ranks, const std::function<void(int)>& f) {
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) threads.emplace_back(f, r);
  for (auto& t : threads) t.join();
}

double difference(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(torch::kDouble) - b.to(torch::kDouble)).abs().max().item<double>();
}

struct Case {
  at::ScalarType dtype;
  at::MemoryFormat layout;
  double tolerance;
};

// Compares ranks with batches of different sizes with torch's batch norm over the concatenated batch.
class SyncBatchNormCases : public ::testing::TestWithParam<Case> {};

TEST_P(SyncBatchNormCases, EqualsOneProcessOverTheConcatenatedBatch) {
  torch::manual_seed(7);
  const Case c = GetParam();
  const std::vector<int64_t> sizes = {3, 1, 4};
  const at::Tensor x = (torch::randn({8, 5, 4, 6}, torch::kDouble) * 2 + 10).to(c.dtype).contiguous(c.layout);
  const at::Tensor dy = torch::randn({8, 5, 4, 6}, torch::kDouble).to(c.dtype).contiguous(c.layout);
  const at::Tensor weight = torch::rand({5}, torch::kDouble) + 0.5, bias = torch::randn({5}, torch::kDouble);

  torch::nn::BatchNorm2d whole(5);
  whole->to(torch::kDouble);
  const auto with_values = [&](auto& layer, at::ScalarType type) {
    const torch::NoGradGuard no_grad;
    layer.weight.copy_(weight.to(type));
    layer.bias.copy_(bias.to(type));
  };
  with_values(*whole, c.dtype);
  at::Tensor whole_x = x.to(torch::kDouble).detach().requires_grad_();
  const at::Tensor whole_y = whole->forward(whole_x);
  whole_y.backward(dy.to(torch::kDouble));

  const int ranks = static_cast<int>(sizes.size());
  const std::vector<at::Tensor> xs = x.split_with_sizes(sizes), dys = dy.split_with_sizes(sizes);
  std::vector<at::Tensor> ys(ranks), dxs(ranks), dws(ranks), dbs(ranks);
  std::vector<std::shared_ptr<BatchNorm2dImpl>> layers;
  for (int r = 0; r < ranks; ++r) layers.push_back(std::make_shared<BatchNorm2dImpl>(5));
  ThreadSum sum(ranks);
  on_ranks(ranks, [&](int rank) {
    BatchNorm2dImpl& layer = *layers[rank];
    layer.to(c.dtype);
    with_values(layer, c.dtype);
    layer.sum_statistics_with([&, rank](at::Tensor& t) { sum(rank, t); });
    const at::Tensor mine = xs[rank].contiguous(c.layout).detach().requires_grad_();
    ys[rank] = layer.forward(mine);
    ys[rank].backward(dys[rank].contiguous(c.layout));
    dxs[rank] = mine.grad();
    dws[rank] = layer.weight.grad().to(torch::kDouble);
    dbs[rank] = layer.bias.grad().to(torch::kDouble);
  });
  EXPECT_EQ(ys[0].scalar_type(), c.dtype);
  EXPECT_LT(difference(torch::cat(ys), whole_y), c.tolerance);
  EXPECT_LT(difference(torch::cat(dxs), whole_x.grad()), c.tolerance);
  EXPECT_LT(difference(dws[0] + dws[1] + dws[2], whole->weight.grad()), 20 * c.tolerance);
  EXPECT_LT(difference(dbs[0] + dbs[1] + dbs[2], whole->bias.grad()), 20 * c.tolerance);
  for (const auto& layer : layers) {
    EXPECT_LT(difference(layer->running_mean, whole->running_mean), c.tolerance);
    EXPECT_LT(difference(layer->running_var, whole->running_var), c.tolerance);
    EXPECT_EQ(layer->num_batches_tracked.item<int64_t>(), 1);
  }
}

INSTANTIATE_TEST_SUITE_P(All, SyncBatchNormCases,
                         ::testing::Values(Case{at::kDouble, at::MemoryFormat::Contiguous, 1e-12},
                                           Case{at::kDouble, at::MemoryFormat::ChannelsLast, 1e-12},
                                           Case{at::kFloat, at::MemoryFormat::Contiguous, 2e-5},
                                           Case{at::kFloat, at::MemoryFormat::ChannelsLast, 2e-5},
                                           Case{at::kBFloat16, at::MemoryFormat::Contiguous, 6e-2}));

TEST(BatchNorm2d, WithoutASumIsPlainBatchNorm) {
  torch::nn::BatchNorm2d plain(3);
  BatchNorm2dImpl ours(3);
  const at::Tensor x = torch::randn({4, 3, 5, 5});
  EXPECT_TRUE(torch::equal(ours.forward(x), plain->forward(x)));
  EXPECT_TRUE(torch::equal(ours.running_var, plain->running_var));
  ours.eval();
  plain->eval();
  EXPECT_TRUE(torch::equal(ours.forward(x), plain->forward(x)));
  EXPECT_EQ(ours.num_batches_tracked.item<int64_t>(), 1);
}

TEST(BatchNorm2d, EvaluationDoesNotCommunicate) {
  BatchNorm2dImpl layer(3);
  layer.sum_statistics_with([](at::Tensor&) { throw CommError("no peer", 1); });
  layer.eval();
  EXPECT_NO_THROW(layer.forward(torch::randn({4, 3, 5, 5})));
  layer.train();
  EXPECT_THROW(layer.forward(torch::randn({4, 3, 5, 5})), CommError);
}

TEST(BatchNorm2d, CountOfBatchesStaysAnInteger) {
  BatchNorm2dImpl layer(3);
  layer.to(torch::kBFloat16);
  EXPECT_EQ(layer.num_batches_tracked.scalar_type(), torch::kLong);
  EXPECT_EQ(layer.running_mean.scalar_type(), torch::kBFloat16);
}

// A whole model: two ranks with synchronized batch norm have the gradients of one process.
TEST(SyncBatchNorm, ResnetOnTwoRanksHasTheGradientsOfOne) {
  ModelSpec spec;
  spec.name = "resnet18";
  spec.batch_norm = starling::BatchNorm::kSync;
  const ModelShape shape{{3, 16, 16}, 10, false};
  const at::Tensor x = torch::randn({4, 3, 16, 16}, torch::kDouble), target = torch::randint(0, 10, {4});
  ThreadSum sum(2);
  std::vector<Model> models;
  for (int r = 0; r < 3; ++r) {
    torch::manual_seed(5);
    ModelHooks hooks;
    if (r < 2) hooks.all_reduce_sum = [&sum, r](at::Tensor& t) { sum(r, t); };
    models.push_back(zoo_model(spec, shape, hooks)());
    models[r].module->to(torch::kDouble);
  }
  const auto step = [](const Model& m, const at::Tensor& input, const at::Tensor& y) {
    m.loss(m.forward(input), y).backward();
  };
  on_ranks(2, [&](int r) { step(models[r], x.narrow(0, 2 * r, 2), target.narrow(0, 2 * r, 2)); });
  step(models[2], x, target);
  const auto whole = models[2].module->named_parameters();
  const auto first = models[0].module->named_parameters(), second = models[1].module->named_parameters();
  for (const auto& p : whole) {
    const at::Tensor mean = (first[p.key()].grad() + second[p.key()].grad()) / 2;
    const double relative = ((mean - p.value().grad()).norm() / p.value().grad().norm()).item<double>();
    EXPECT_LT(relative, 1e-10) << p.key();
  }
}

TEST(SyncBatchNorm, PlainLayerOfLibtorchIsRefusedByName) {
  torch::nn::Sequential inner(torch::nn::Conv2d(3, 4, 1), torch::nn::BatchNorm2d(4));
  struct Net : torch::nn::Module {};
  Net net;
  net.register_module("ours", std::make_shared<BatchNorm2dImpl>(4));
  EXPECT_NO_THROW(sync_batch_norm(net, [](at::Tensor&) {}));
  net.register_module("features", inner.ptr());
  try {
    sync_batch_norm(net, [](at::Tensor&) {});
    FAIL() << "a plain BatchNorm2d was accepted";
  } catch (const ConfigError& e) {
    EXPECT_THAT(e.what(), HasSubstr("\"features.1\""));
    EXPECT_THAT(e.what(), HasSubstr("model.batch_norm = local"));
  }
}

}  // namespace
}  // namespace starling
