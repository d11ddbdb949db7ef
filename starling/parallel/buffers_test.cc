// Buffers (running statistics) at consensus have one rule for all exchanges: a floating-point buffer becomes
// its mean over the ranks, and any other buffer becomes that of rank 0. ad-psgd refuses three ranks, so
// ad_psgd_test.cc has its test. async_easgd_test.cc has that of async-easgd, which has servers.
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include "starling/base/clock.h"
#include "starling/parallel/admm.h"
#include "starling/parallel/all_reduce/all_reduce.h"
#include "starling/parallel/central.h"
#include "starling/parallel/compressed_sgd.h"
#include "starling/parallel/easgd.h"
#include "starling/parallel/gossip.h"
#include "starling/parallel/local_sgd.h"
#include "starling/parallel/parallel_sgd.h"
#include "starling/parallel/zero/zero.h"
#include "starling/torch_testing/torch_group_processes.h"

namespace starling {
namespace {

constexpr int kRanks = 3;

// A model that counts its samples and keeps their mean, as batch norm does. Each rank gets other samples.
Model counting_model() {
  auto module = std::make_shared<torch::nn::Module>();
  module->register_parameter("w", torch::ones({4}));
  const at::Tensor mean = module->register_buffer("mean", torch::zeros({2}));
  const at::Tensor count = module->register_buffer("count", torch::zeros({1}, torch::kLong));
  Model model;
  model.module = module;
  model.forward = [m = module.get(), mean, count](const at::Tensor& x) {
    const at::NoGradGuard no_grad;
    mean.fill_(x.detach().mean());
    count.add_(x.size(0) * static_cast<int64_t>(x[0][0].item<float>()));
    const at::AutoGradMode grad(true);
    return x.matmul(m->named_parameters()["w"]);
  };
  model.loss = [](const at::Tensor& y, const at::Tensor& b) { return (y - b).square().mean(); };
  return model;
}

using Make = std::function<std::unique_ptr<Strategy>(UpdateRule, FlatReplicaOptions, Group&, const Clock&)>;

template <typename S, typename... More>
Make counting(More... more) {
  return [more...](UpdateRule rule, const FlatReplicaOptions& options, Group& group, const Clock& clock) {
    return std::make_unique<S>(counting_model, std::move(rule), options, more..., group, clock);
  };
}

std::map<std::string, Make> exchanges_with_buffers() {
  const auto zero = [](int stage) -> Make {
    return [stage](UpdateRule rule, const FlatReplicaOptions& options, Group& group, const Clock& clock) {
      return std::make_unique<Zero>(counting_model, std::move(rule), ZeroOptions{stage, options}, group,
                                    clock);
    };
  };
  const Make all_reduce = [](UpdateRule rule, FlatReplicaOptions, Group& group, const Clock& clock) {
    return std::make_unique<AllReduce>(counting_model, std::move(rule), AllReduceOptions{}, group, clock);
  };
  return {{"all-reduce", all_reduce},
          {"all-reduce_with_codec", counting<CompressedSgd>(parse_codec("int8"))},
          {"central_sharded", counting<Central>(true)},
          {"central_master", counting<Central>(false)},
          {"local-sgd", counting<LocalSgd>(int64_t{2})},
          {"easgd", counting<Easgd>(int64_t{2}, 0.9)},
          {"parallel-sgd", counting<ParallelSgd>(int64_t{2}, Combine::kAverage, Batch{})},
          {"admm", counting<Admm>(AdmmOptions{2, 0.5, true})},
          {"gossip", counting<Gossip>(GossipGraph::kRing)},
          {"zero_1", zero(1)},
          {"zero_2", zero(2)}};
}

TEST(Buffers, AreTheirMeanOverTheRanksAtConsensus) {
  const auto of_ranks = numbers_of_processes(kRanks, [](Group& group, Store&) {
    const SystemClock clock;
    OptimizerSpec sgd;
    sgd.momentum = 0;
    FlatReplicaOptions options;
    options.rank = group.rank();
    Numbers found;
    for (const auto& [name, make] : exchanges_with_buffers()) {
      const auto strategy = make(make_update_rule(sgd), options, group, clock);
      for (int step = 1; step <= 2; ++step) {
        strategy->begin_step({step, 0.001, false});
        strategy->forward_backward({torch::full({5, 4}, 1.0F + group.rank()), torch::zeros({5})});
        strategy->update();
      }
      strategy->consensus();
      for (const NamedTensor& b : strategy->evaluated().buffers)
        found[name + "/" + b.name] = b.tensor[0].item<double>();
    }
    return found;
  });
  for (const Numbers& rank : of_ranks) {
    ASSERT_EQ(rank.size(), 2 * exchanges_with_buffers().size());
    for (const auto& [name, value] : rank) {
      const bool mean = name.ends_with("/mean");
      EXPECT_NEAR(value, mean ? 2.0 : 10.0, 1e-6) << name;  // mean of 1, 2, 3; rank 0's 2 steps of 5 samples
    }
  }
}

}  // namespace
}  // namespace starling
