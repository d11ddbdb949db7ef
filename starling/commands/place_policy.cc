#include "starling/commands/place_policy.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>
#include <torch/optim/adam.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "starling/base/error.h"
#include "starling/base/keyed_random.h"
#include "starling/parallel/loop_strategy.h"
#include "starling/run/loop/torch_optimizer.h"

namespace starling {
namespace {

constexpr int64_t kKindUnits = 8, kDeviceUnits = 8;
constexpr double kLargestLogit = 5;  // C

// What the policy sees of a graph.
struct GraphFeatures {
  at::Tensor kinds;    // [n] int64
  at::Tensor numbers;  // [n, 4 + n]: times and bytes relative to their largest, then the inputs of the group
  int64_t kind_count = 0;
};

GraphFeatures features_of(const PlacementGraph& graph) {
  const auto n = static_cast<int64_t>(graph.groups.size());
  GraphFeatures features{at::zeros({n}, at::kLong), at::zeros({n, 4 + n}), 0};
  std::map<std::string, int64_t> kinds;
  for (int64_t g = 0; g < n; ++g) {
    const OperationGroup& group = graph.groups[static_cast<size_t>(g)];
    const int64_t kind = kinds.emplace(group.kind, static_cast<int64_t>(kinds.size())).first->second;
    features.kinds[g] = kind;
    at::Tensor row = features.numbers[g];
    row[0] = group.forward_s;
    row[1] = group.backward_s;
    row[2] = group.output_bytes;
    row[3] = group.state_bytes;
    for (const int input : group.inputs) row[4 + input] = 1;
  }
  at::Tensor scales = features.numbers.narrow(1, 0, 4);
  scales.div_(scales.amax(0).clamp_min(1e-30));
  features.kind_count = static_cast<int64_t>(kinds.size());
  return features;
}

// K placements with what the policy says about them.
struct Samples {
  at::Tensor devices;  // [K, n] int64
  at::Tensor log_p;    // [K]: log π(P_k), with a gradient
  at::Tensor entropy;  // []: mean over groups and samples, with a gradient
};

class PlacementPolicy : public torch::nn::Module {
 public:
  PlacementPolicy(const GraphFeatures& features, int64_t devices, int64_t hidden)
      : features_(features),
        devices_(devices),
        kinds_(register_module("kinds", torch::nn::Embedding(features.kind_count, kKindUnits))),
        // The last embedding is that of "no device yet".
        named_(register_module("named", torch::nn::Embedding(devices + 1, kDeviceUnits))),
        input_(register_module("input", torch::nn::Linear(kKindUnits + features.numbers.size(1), hidden))),
        encoder_(register_module("encoder", torch::nn::LSTM(hidden, hidden))),
        decoder_(register_module("decoder", torch::nn::LSTMCell(hidden + kDeviceUnits, hidden))),
        keys_(register_module("keys", torch::nn::Linear(hidden, hidden))),
        query_(register_module("query", torch::nn::Linear(hidden, hidden))),
        score_(register_module("score", torch::nn::Linear(hidden, 1))),
        output_(register_module("output", torch::nn::Linear(2 * hidden, devices))) {}

  // Samples `count` placements, or takes the most likely device of each group if there is no generator.
  Samples draw(int64_t count, std::optional<at::Generator> generator) {
    const at::Tensor seen = at::cat({kinds_->forward(features_.kinds), features_.numbers}, 1);
    const at::Tensor encoded =
        std::get<0>(encoder_->forward(input_->forward(seen).tanh().unsqueeze(1))).squeeze(1);  // [n, H]
    const at::Tensor keys = keys_->forward(encoded);
    at::Tensor h = encoded.mean(0, true).expand({count, -1}), c = at::zeros_like(h);
    at::Tensor last = at::full({count}, devices_, at::kLong);
    Samples samples;
    std::vector<at::Tensor> named;
    at::Tensor log_p = at::zeros({count}), entropy = at::zeros({});
    const int64_t n = encoded.size(0);
    for (int64_t g = 0; g < n; ++g) {
      const at::Tensor own = encoded[g].unsqueeze(0).expand({count, -1});
      std::tie(h, c) = decoder_->forward(at::cat({own, named_->forward(last)}, 1), std::make_tuple(h, c));
      const at::Tensor logits = (attended(h, keys, encoded)).tanh() * kLargestLogit;  // [K, D]
      const at::Tensor log_each = at::log_softmax(logits, 1), each = log_each.exp();
      last = generator ? at::multinomial(each.detach(), 1, false, generator).squeeze(1) : each.argmax(1);
      log_p = log_p + log_each.gather(1, last.unsqueeze(1)).squeeze(1);
      entropy = entropy - (each * log_each).sum(1).mean() / static_cast<double>(n);
      named.push_back(last);
    }
    return {at::stack(named, 1), log_p, entropy};
  }

 private:
  // Returns the logits [K, D] of the decoder's states h [K, H]: attention over the encoded groups [n, H].
  at::Tensor attended(const at::Tensor& h, const at::Tensor& keys, const at::Tensor& encoded) {
    const at::Tensor mixed = (keys.unsqueeze(0) + query_->forward(h).unsqueeze(1)).tanh();  // [K, n, H]
    const at::Tensor weights = at::softmax(score_->forward(mixed).squeeze(2), 1);           // [K, n]
    return output_->forward(at::cat({h, weights.matmul(encoded)}, 1));
  }

  const GraphFeatures features_;
  const int64_t devices_;
  torch::nn::Embedding kinds_, named_;
  torch::nn::Linear input_;
  torch::nn::LSTM encoder_;
  torch::nn::LSTMCell decoder_;
  torch::nn::Linear keys_, query_, score_, output_;
};

Placement placement_of(const at::Tensor& devices) {
  Placement placement;
  for (int64_t g = 0; g < devices.size(0); ++g) placement.push_back(devices[g].item<int>());
  return placement;
}

// One worker: its policy, its samples and its baseline.
class PolicyWorker {
 public:
  PolicyWorker(const StepSimulator& simulator, const PolicyOptions& options, uint64_t seed)
      : simulator_(simulator),
        options_(options),
        policy_(seeded_policy(simulator, options)),
        generator_(at::make_generator<at::CPUGeneratorImpl>(seed)),
        reference_(simulator.cost(on_one_device(simulator, simulator.topology().fastest()))) {
    best_.cost = std::numeric_limits<double>::infinity();
  }

  PlacementPolicy& policy() { return *policy_; }
  const FoundPlacement& best() const { return best_; }

  // Adds the gradient of one update to the parameters. Returns the mean reward.
  double compute_gradient() {
    const Samples samples = policy_->draw(options_.samples, generator_);
    at::Tensor rewards = at::zeros({options_.samples});
    for (int64_t k = 0; k < options_.samples; ++k) rewards[k] = reward_of(placement_of(samples.devices[k]));
    const double mean = rewards.mean().item<double>();
    baseline_ = begun_ ? options_.decay * baseline_ + (1 - options_.decay) * mean : mean;
    begun_ = true;
    const at::Tensor loss =
        -((rewards - baseline_) * samples.log_p).mean() - options_.entropy * samples.entropy;
    loss.backward();
    return mean;
  }

  // Returns the most likely placement.
  FoundPlacement likely() {
    const at::NoGradGuard no_grad;
    FoundPlacement found{placement_of(policy_->draw(1, std::nullopt).devices[0]), 0, 1};
    found.cost = simulator_.cost(found.placement);
    return found;
  }

 private:
  static std::shared_ptr<PlacementPolicy> seeded_policy(const StepSimulator& simulator,
                                                        const PolicyOptions& options) {
    at::manual_seed(options.seed);
    return std::make_shared<PlacementPolicy>(features_of(simulator.graph()), simulator.topology().size(),
                                             options.hidden);
  }

  double reward_of(const Placement& placement) {
    const double cost = simulator_.cost(placement);
    ++best_.simulations;
    if (cost < best_.cost) best_ = {placement, cost, best_.simulations};
    return -std::sqrt(cost / reference_);
  }

  const StepSimulator& simulator_;
  const PolicyOptions options_;
  const std::shared_ptr<PlacementPolicy> policy_;
  at::Generator generator_;
  const double reference_;
  double baseline_ = 0;
  bool begun_ = false;
  FoundPlacement best_;
};

LoopModel model_of(PlacementPolicy& policy) {
  LoopModel model;
  for (const auto& p : policy.named_parameters()) model.parameters.push_back({p.key(), p.value()});
  return model;
}

// Gives all ranks the placement of `root`.
void share(Group& group, FoundPlacement& found, int root) {
  if (group.size() == 1) return;
  broadcast(group, found.placement.data(), found.placement.size(), DataType::kInt32, root);
  broadcast(group, &found.cost, 1, DataType::kFp64, root);
  broadcast(group, &found.simulations, 1, DataType::kInt64, root);
}

// Gives all ranks the best placement of any rank, and the sum of all simulations.
void share_best(Group& group, FoundPlacement& best, size_t groups) {
  if (group.size() == 1) return;
  best.placement.resize(groups);
  int64_t simulations = best.simulations;
  all_reduce(group, &simulations, 1, DataType::kInt64, ReduceOp::kSum);
  std::vector<double> costs(static_cast<size_t>(group.size()));
  all_gather(group, &best.cost, costs.data(), 1, DataType::kFp64);
  share(group, best, static_cast<int>(std::min_element(costs.begin(), costs.end()) - costs.begin()));
  best.simulations = simulations;
}

}  // namespace

void check_policy(const PolicyOptions& options) {
  if (options.updates < 1 || options.samples < 1 || options.hidden < 1)
    throw ConfigError("--updates", "the policy needs at least one update of one sample and one hidden unit");
  if (!(options.lr > 0) || !(options.decay >= 0) || options.decay >= 1 || !(options.entropy >= 0))
    throw ConfigError(
        "--policy-lr",
        "the learning rate must be above 0, the decay of the baseline from 0 to below 1, and the "
        "weight of the entropy at least 0");
}

RunSpec policy_spec(RunSpec spec) {
  spec.exchange = ExchangeSpec{};  // a codec or an average of the user's training is none of the policy's
  if (spec.train.ranks == 1) return spec;
  spec.exchange.name = "parameter-server";
  spec.exchange.staleness = "inf";
  spec.exchange.servers = 1;
  return spec;
}

PolicyResult train_policy(const StepSimulator& simulator, const PolicyOptions& options, const RunSpec& spec,
                          const RunEnvironment& environment, LoopState& loop,
                          const std::function<void(int64_t update, double lowest)>& on_update) {
  check_policy(options);
  Group& group = environment.group;
  PolicyWorker worker(simulator, options, key_of(options.seed, static_cast<uint64_t>(group.rank()), 1));
  PolicyResult result;
  {
    const ServerAccess servers{.store = environment.store, .rendezvous = environment.rendezvous};
    const LoopPlace place{group, environment.process.clock, environment.process.stop, loop, servers};
    torch::optim::Adam adam(worker.policy().parameters(), torch::optim::AdamOptions(options.lr));
    LoopStrategy strategy(spec, place, model_of(worker.policy()), adapt_optimizer(adam));
    result.parameters = strategy.parameters();
    for (int64_t update = 0; update < options.updates && !loop.stopping; ++update) {
      strategy.zero_grad();
      result.last_reward = worker.compute_gradient();
      if (update == 0) result.first_reward = result.last_reward;
      strategy.step();
      if (on_update) on_update(update + 1, worker.best().cost);
    }
    result.interrupted = loop.stopping;
    const StrategyStats stats = strategy.statistics();
    const auto bytes = stats.find("bytes_exchanged");
    result.bytes_exchanged = bytes == stats.end() ? 0 : bytes->second;
    strategy.consensus();
    result.likely = worker.likely();
    strategy.resume_training();
  }
  share(group, result.likely, 0);
  result.best = worker.best();
  share_best(group, result.best, simulator.graph().groups.size());
  return result;
}

}  // namespace starling
