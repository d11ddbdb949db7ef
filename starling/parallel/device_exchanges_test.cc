// Every exchange of whole models trains a model on the test device, whose memory the host cannot access, as
// it trains the model on the CPU. The ranks are real processes. fp64, except for codecs.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "starling/base/clock.h"
#include "starling/parallel/exchange_makers.h"
#include "starling/parallel/replica/device_model.h"
#include "starling/torch_testing/tensor_difference.h"
#include "starling/torch_testing/test_device.h"
#include "starling/torch_testing/torch_group_processes.h"

namespace starling {
namespace {

constexpr int kSteps = 6;
constexpr int64_t kSamples = 4;  // per rank and step
constexpr double kLr = 0.05;

struct LeNet : torch::nn::Module {
  torch::nn::Conv2d conv1{nullptr}, conv2{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Linear full{nullptr};
  torch::Tensor unused, frozen;
  LeNet() {
    conv1 = register_module("conv1", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 3, 3).padding(1)));
    norm = register_module("norm", torch::nn::BatchNorm2d(3));
    conv2 = register_module("conv2", torch::nn::Conv2d(3, 4, 3));
    full = register_module("full", torch::nn::Linear(16, 3));
    unused = register_parameter("unused", torch::rand({5}));
    frozen = register_parameter("frozen", torch::rand({16}), false);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto h = torch::max_pool2d(norm(conv1(x)).relu(), 2);
    return full(torch::max_pool2d(conv2(h).relu(), 2).flatten(1) * frozen);
  }
};

Model lenet() {
  const auto net = std::make_shared<LeNet>();
  return {net, [net](const at::Tensor& x) { return net->forward(x); }, cross_entropy};
}

Batch batch_of(int rank, int64_t step, at::ScalarType type) {
  torch::manual_seed(100 * step + rank);
  Batch batch;
  batch.input = torch::randn({kSamples, 1, 12, 12}, torch::kDouble).to(type);
  batch.target = torch::randint(3, {kSamples});
  batch.keys = torch::arange(kSamples, torch::kLong);
  return batch;
}

// One way to train.
struct Way {
  std::function<void(RunSpec&)> set = [](RunSpec&) {};
  at::ScalarType type = at::kDouble;
  bool own_optimizer = false;
};

// torch's SGD with momentum, as a program brings it.
class Sgd final : public OwnOptimizer {
 public:
  explicit Sgd(const std::vector<NamedTensor>& parameters) {
    std::vector<at::Tensor> tensors;
    tensors.reserve(parameters.size());
    for (const NamedTensor& p : parameters) tensors.push_back(p.tensor);
    sgd_ = std::make_unique<torch::optim::SGD>(tensors, torch::optim::SGDOptions(kLr).momentum(0.9));
  }
  void step() override { sgd_->step(); }
  double lr() const override { return kLr; }
  at::Tensor state() override { return at::empty({0}, at::kByte); }
  void load_state(const at::Tensor& /*bytes*/) override {}

 private:
  std::unique_ptr<torch::optim::SGD> sgd_;
};

std::unique_ptr<Strategy> strategy_of(const Way& way, const RunSpec& spec, const ModelFactory& factory,
                                      Group& group, const Clock& clock) {
  FlatReplicaOptions replica;
  replica.master = replica.working = way.type;
  replica.rank = group.rank();
  replica.seed = 5;
  replica.accumulate = spec.train.accumulate;
  replica.clip_norm = spec.optimizer.clip_norm;
  if (way.own_optimizer)
    replica.optimizer = [](const std::vector<NamedTensor>& p) { return std::make_shared<Sgd>(p); };
  ExchangeParts parts{spec, factory, group, clock, replica};
  parts.total_steps = kSteps;
  return make_exchange(parts);
}

void train(Strategy& strategy, int rank, int64_t first, int64_t last, at::ScalarType type) {
  for (int64_t step = first; step <= last; ++step) {
    strategy.begin_step({step, kLr});
    strategy.forward_backward(batch_of(rank, step, type));
    strategy.update();
  }
}

// Returns the parameters and buffers that are evaluated.
std::map<std::string, at::Tensor> tensors_of(Strategy& strategy) {
  strategy.consensus();
  std::map<std::string, at::Tensor> tensors;
  for (const NamedTensor& p : strategy.evaluated().parameters) tensors[p.name] = p.tensor.detach().clone();
  for (const NamedTensor& b : strategy.evaluated().buffers) tensors[b.name] = b.tensor.clone();
  return tensors;
}

// Returns the largest relative difference between the CPU and the device, over tensors and ranks.
double difference(int ranks, const Way& way) {
  const auto of_ranks = values_of_processes(ranks, [&](Group& group, Store&) -> std::vector<double> {
    const SystemClock clock;
    RunSpec spec;
    spec.train.ranks = ranks;
    spec.train.global_batch = ranks * kSamples;
    spec.train.precision = way.type == at::kDouble ? Precision::kFp64 : Precision::kFp32;
    spec.exchange.every = 2;
    way.set(spec);
    std::map<std::string, at::Tensor> results[2];
    const ModelFactory factories[] = {lenet, on_device(lenet, test_device(group.rank() % kTestDevices))};
    for (int i = 0; i < 2; ++i) {
      const auto strategy = strategy_of(way, spec, factories[i], group, clock);
      train(*strategy, group.rank(), 1, kSteps, way.type);
      results[i] = tensors_of(*strategy);
    }
    return {largest_difference(results[1], results[0]).difference};
  });
  double largest = 0;
  for (const auto& values : of_ranks) {
    // A NaN counts as larger than every number.
    if (!(values.at(0) <= largest)) largest = values.at(0);
  }
  return largest;
}

// Expects equal updates with these numbers of ranks.
void expect_equal(const std::vector<int>& ranks, const Way& way, double limit = 1e-10) {
  for (const int count : ranks) EXPECT_LE(difference(count, way), limit) << count << " ranks";
}

Way exchange(const std::string& name) {
  return {[name](RunSpec& spec) { spec.exchange.name = name; }};
}

TEST(DeviceExchanges, AllReduce) {
  expect_equal({1, 2, 3}, {});
}

TEST(DeviceExchanges, AllReduceInPartsWithClipping) {
  expect_equal({2}, {[](RunSpec& spec) {
                 spec.train.accumulate = 2;
                 spec.optimizer.clip_norm = 0.1;
               }});
}

TEST(DeviceExchanges, CentralSharded) {
  expect_equal({2, 3}, exchange("central"));
}

TEST(DeviceExchanges, CentralMaster) {
  expect_equal({2}, {[](RunSpec& spec) {
                 spec.exchange.name = "central";
                 spec.exchange.central = CentralMode::kMaster;
               }});
}

TEST(DeviceExchanges, Gossip) {
  expect_equal({1, 2, 3}, exchange("gossip"));
}

TEST(DeviceExchanges, StochasticGradientPush) {
  expect_equal({1, 2, 3}, {[](RunSpec& spec) {
                 spec.exchange.name = "sgp";
                 spec.exchange.graph = "one-peer";
               }});
}

TEST(DeviceExchanges, ElasticAveraging) {
  expect_equal({2, 3}, exchange("easgd"));
}

TEST(DeviceExchanges, LocalSgd) {
  expect_equal({2, 3}, exchange("local-sgd"));
}

TEST(DeviceExchanges, ParallelSgd) {
  expect_equal({2, 3}, exchange("parallel-sgd"));
}

TEST(DeviceExchanges, Admm) {
  expect_equal({2, 3}, exchange("admm"));
}

TEST(DeviceExchanges, RatesOfTensors) {
  for (const char* name : {"lars", "lamb"})
    expect_equal({2}, {[name](RunSpec& spec) {
                   spec.optimizer.name = name;
                   spec.optimizer.exempt_vectors = true;
                   spec.optimizer.weight_decay = 0.1;
                 }});
}

TEST(DeviceExchanges, Zero1) {
  expect_equal({2, 3}, {[](RunSpec& spec) { spec.train.shard = Shard::kOptimizer; }});
}

TEST(DeviceExchanges, Zero2) {
  expect_equal({2, 3}, {[](RunSpec& spec) { spec.train.shard = Shard::kGradients; }});
}

TEST(DeviceExchanges, OptimizerOfTheProgram) {
  Way way;
  way.own_optimizer = true;
  expect_equal({1, 2}, way);
}

// A rounding may change a coded value, so the updates are only close.
TEST(DeviceExchanges, Codec) {
  expect_equal({2}, {[](RunSpec& spec) { spec.exchange.codec = "fp16"; }, at::kFloat}, 1e-2);
}

}  // namespace
}  // namespace starling
