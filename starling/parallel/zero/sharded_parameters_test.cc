// ZeRO 3 with an optimizer of the program, on real processes in fp64. The updates are those of one process,
// and a rank holds and moves the bytes that sharded_parameters.h says.
#include "starling/parallel/zero/sharded_parameters.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include "starling/base/error.h"
#include "starling/testing/join_group.h"
#include "starling/torch_testing/torch_group_processes.h"

namespace starling {
namespace {

constexpr int kRanks = 4;
constexpr int64_t kLayers = 6, kWidth = 64, kSamples = 8;
constexpr double kUnitBytes = kWidth * kWidth * 8;
constexpr double kRate = 0.1;

// Plain gradient descent, which updates each element by itself.
class Descent final : public OwnOptimizer {
 public:
  explicit Descent(const std::vector<NamedTensor>& parameters) {
    for (const NamedTensor& p : parameters) updated_.push_back(p.tensor);
  }
  void step() override {
    const at::NoGradGuard no_grad;
    for (at::Tensor& t : updated_)
      if (t.defined() && t.grad().defined()) t.sub_(t.grad(), kRate);
  }
  double lr() const override { return kRate; }
  bool shard(const std::vector<ParameterPart>& parts) override {
    updated_.clear();
    for (const ParameterPart& p : parts) updated_.push_back(p.part);
    return true;
  }
  at::Tensor state() override { return at::zeros({1}, at::kByte); }
  void load_state(const at::Tensor& /*bytes*/) override {}

 private:
  std::vector<at::Tensor> updated_;
};

// A module that calls its layers in its own way. The embedding is also the last layer.
struct Net : torch::nn::Module {
  Net() {
    table = register_module("table", torch::nn::Embedding(kWidth, kWidth));
    layers = register_module("layers", torch::nn::ModuleList());
    for (int64_t i = 1; i < kLayers; ++i)
      layers->push_back(torch::nn::Linear(torch::nn::LinearOptions(kWidth, kWidth).bias(false)));
    to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& words) {
    at::Tensor x = table->forward(words);
    for (const auto& layer : *layers) x = at::tanh(layer->as<torch::nn::Linear>()->forward(x));
    return at::linear(x, table->weight);
  }
  torch::nn::Embedding table{nullptr};
  torch::nn::ModuleList layers;
};

// Returns the samples of some ranks in a step.
at::Tensor words_of(int64_t step, int first_rank, int ranks = 1) {
  torch::manual_seed(100 + step);
  return torch::randint(kWidth, {kRanks * kSamples}).narrow(0, first_rank * kSamples, ranks * kSamples);
}

at::Tensor loss_of(Net& net, const at::Tensor& words) {
  return net.forward(words).square().mean();
}

// A limit on the weights, as a program's loop sets after an update.
void limit(Net& net) {
  const at::NoGradGuard no_grad;
  for (at::Tensor& p : net.parameters()) p.clamp_(-0.1, 0.1);
}

// The parameters after some steps on one process.
std::vector<at::Tensor> reference(int64_t steps, int ranks) {
  torch::manual_seed(3);
  Net net;
  Descent descent([&] {
    std::vector<NamedTensor> all;
    for (const auto& p : net.named_parameters()) all.push_back({p.key(), p.value()});
    return all;
  }());
  for (int64_t step = 1; step <= steps; ++step) {
    net.zero_grad();
    loss_of(net, words_of(step, 0, ranks)).backward();
    descent.step();
    limit(net);
  }
  return net.parameters();
}

// A rank's net with its strategy.
struct Trained {
  explicit Trained(Group& group, double unit_bytes = kUnitBytes) {
    torch::manual_seed(3 + group.rank());  // all ranks take the parameters of rank 0
    net = std::make_shared<Net>();
    FlatReplicaOptions options;
    options.master = options.working = at::kDouble;
    options.own_gradients = options.releases_gradients = true;
    options.optimizer = [](const std::vector<NamedTensor>& p) { return std::make_shared<Descent>(p); };
    const ModelFactory factory = [this] { return Model{net, nullptr, nullptr}; };
    strategy =
        std::make_unique<ShardedParameters>(factory, options, static_cast<size_t>(unit_bytes), group, clock);
    strategy->begin_step({1, kRate, false});
  }
  void train(int64_t first, int64_t last, int rank) {
    for (int64_t step = first; step <= last; ++step) {
      loss_of(*net, words_of(step, rank)).backward();
      strategy->take_gradients({kRate});
      strategy->update();
      strategy->begin_step({step + 1, kRate, false});
      limit(*net);
    }
  }
  double distance(const std::vector<at::Tensor>& wanted) const {
    const at::NoGradGuard no_grad;
    double most = 0;
    const std::vector<at::Tensor> own = net->parameters();
    for (size_t i = 0; i < own.size(); ++i)
      most = std::max(most, ((own[i] - wanted[i]).norm() / wanted[i].norm()).item<double>());
    return most;
  }
  SystemClock clock;
  std::shared_ptr<Net> net;
  std::unique_ptr<ShardedParameters> strategy;
};

void expect_the_updates_of_one_process(int ranks, double unit_bytes) {
  const auto found = numbers_of_processes(ranks, [&](Group& group, Store&) {
    const std::vector<at::Tensor> wanted = reference(5, ranks);
    Trained trained(group, unit_bytes);
    trained.train(1, 3, group.rank());
    // A state that is written and read again changes nothing.
    StrategyState state = trained.strategy->state();
    state.step = 3;
    for (const auto& item : trained.net->named_parameters()) {
      at::Tensor& kept = state.parameters[item.key()];
      if (group.rank() != 0) kept = at::empty(item.value().sizes(), at::kDouble);
      broadcast(group, kept.data_ptr(), static_cast<size_t>(kept.numel()), DataType::kFp64, 0);
    }
    state.optimizer.clear();
    trained.strategy->load_state(state);
    trained.strategy->begin_step({4, kRate, false});
    trained.train(4, 5, group.rank());
    Numbers numbers = {{"used", trained.distance(wanted)}};
    trained.strategy->consensus();
    numbers["shown"] = trained.distance(wanted);
    trained.strategy->begin_step({6, kRate, false});
    trained.strategy.reset();
    numbers["after"] = trained.distance(wanted);
    return numbers;
  });
  for (const Numbers& rank : found) {
    EXPECT_LT(rank.at("used"), 1e-10);
    EXPECT_LT(rank.at("shown"), 1e-10);
    EXPECT_LT(rank.at("after"), 1e-10);
  }
}

TEST(ShardedParameters, UpdatesAreThoseOfOneProcessAndKeepWhatTheProgramChanges) {
  expect_the_updates_of_one_process(kRanks, kUnitBytes);
}

// One unit stays whole from forward to the update, and when the program changes it.
TEST(ShardedParameters, UpdatesOfOneUnitAreThoseOfOneProcess) {
  expect_the_updates_of_one_process(2, 1e9);
  expect_the_updates_of_one_process(1, 1e9);
}

TEST(ShardedParameters, ARankHoldsItsShareAndAFewUnits) {
  const auto found = numbers_of_processes(kRanks, [](Group& group, Store&) {
    Trained trained(group);
    const auto held = [&] {
      double bytes = 0;
      for (const at::Tensor& p : trained.net->parameters())
        bytes += static_cast<double>(p.storage().nbytes());
      return bytes;
    };
    const double before = held();
    const at::Tensor loss = loss_of(*trained.net, words_of(1, group.rank()));
    const double forward = held();
    loss.backward();
    trained.strategy->take_gradients({kRate});
    trained.strategy->update();
    double gradients = 0;
    for (const at::Tensor& p : trained.net->parameters()) gradients += p.grad().defined() ? 1 : 0;
    Numbers numbers = trained.strategy->strategy_stats();
    numbers["before"] = before;
    numbers["forward"] = forward;
    numbers["gradients"] = gradients;
    return numbers;
  });
  for (const Numbers& rank : found) {
    EXPECT_EQ(rank.at("units"), kLayers);
    EXPECT_EQ(rank.at("shard_elements"), kLayers * kWidth * kWidth / kRanks);
    EXPECT_EQ(rank.at("parameter_bytes"), kLayers * kUnitBytes / kRanks);
    EXPECT_EQ(rank.at("gradient_elements"), rank.at("shard_elements"));
    EXPECT_EQ(rank.at("gradients"), 0);
    EXPECT_EQ(rank.at("before"), 0);
    EXPECT_EQ(rank.at("forward"), 3 * kUnitBytes);  // of the last operation, and two that are kept
    EXPECT_EQ(rank.at("temporary_bytes"), 3 * kUnitBytes);
    // Forward gathers the table, five layers and the table again. Three of them are still whole when backward
    // begins, with the table as the last layer. Backward of the embedding does not read the table.
    EXPECT_EQ(rank.at("gathers"), 7 + 3);
    EXPECT_EQ(rank.at("traffic_elements"), 10 * kWidth * kWidth * (kRanks - 1) / kRanks);
  }
}

TEST(ShardedParameters, RanksThatUseOtherParametersAreFound) {
  const auto found = numbers_of_processes(2, [](Group& group, Store&) {
    Trained trained(group);
    loss_of(*trained.net, words_of(1, group.rank())).backward();
    trained.net->layers[static_cast<size_t>(3 + group.rank())]->as<torch::nn::Linear>()->weight.sum();
    trained.strategy->take_gradients({kRate});
    double reported = 0;
    try {
      trained.strategy->update();
    } catch (const ConfigError&) {
      reported = 1;
    }
    return Numbers{{"reported", reported}};
  });
  for (const Numbers& rank : found) EXPECT_EQ(rank.at("reported"), 1);
}

// A callback may not throw. The error appears when the strategy takes the gradients.
TEST(ShardedParameters, AnErrorOfAGatherIsReported) {
  const auto found = numbers_of_processes(2, [](Group& all, Store& store) {
    const auto group = join_subset(store, all, "aborted", {0, 1});
    Trained trained(*group);
    group->abort("the test ends the group");
    loss_of(*trained.net, words_of(1, 0)).backward();
    double reported = 0;
    try {
      trained.strategy->take_gradients({kRate});
    } catch (const CommError&) {
      reported = 1;
    }
    return Numbers{{"reported", reported}};
  });
  for (const Numbers& rank : found) EXPECT_EQ(rank.at("reported"), 1);
}

}  // namespace
}  // namespace starling
