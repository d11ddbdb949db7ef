#include "starling/run/strategies.h"

#include <algorithm>

#include "starling/base/error.h"
#include "starling/parallel/admm.h"
#include "starling/parallel/central.h"
#include "starling/parallel/delayed.h"
#include "starling/parallel/gossip.h"
#include "starling/parallel/local_sgd.h"
#include "starling/parallel/parallel_sgd.h"

namespace starling {
namespace {

bool channels_last(const Choices& choices) {
  const auto layout = choices.find("layout");
  return layout != choices.end() && layout->second == "channels-last";
}

FlatReplicaOptions flat_options(const StrategyParts& parts) {
  const AllReduceOptions common = all_reduce_options(parts.spec, parts.choices);
  FlatReplicaOptions options;
  options.master = common.master;
  options.working = common.working;
  options.clip_norm = common.clip_norm;
  options.channels_last = common.channels_last;
  options.seed = common.seed;
  options.rank = parts.around.group.rank();
  return options;
}

// A strategy with evaluated() and fingerprint().
template <typename S, typename... Args>
BuiltStrategy built(Args&&... args) {
  auto strategy = std::make_unique<S>(std::forward<Args>(args)...);
  BuiltStrategy result;
  result.evaluated = &strategy->evaluated();
  result.fingerprint = [s = strategy.get()] { return s->fingerprint(); };
  result.strategy = std::move(strategy);
  return result;
}

BuiltStrategy all_reduce(const StrategyParts& parts, const UpdateRule& rule) {
  AllReduceOptions options = all_reduce_options(parts.spec, parts.choices);
  options.on_bucket = parts.on_bucket;
  return built<AllReduce>(parts.factory, rule, options, parts.around.group, parts.around.clock);
}

GossipGraph graph_of(const std::string& name) {
  return name == "torus"         ? GossipGraph::kTorus
         : name == "exponential" ? GossipGraph::kExponential
                                 : GossipGraph::kRing;
}

// With exchange.rounds the run is cut into so many rounds of equal length (the last one may be longer).
int64_t steps_of_a_round(const StrategyParts& parts) {
  const ExchangeSpec& exchange = parts.spec.exchange;
  if (exchange.rounds == 0) return exchange.every;
  return std::max<int64_t>(1, parts.total_steps / exchange.rounds);
}

}  // namespace

AllReduceOptions all_reduce_options(const RunSpec& spec, const Choices& choices) {
  AllReduceOptions options;
  options.master = spec.train.precision == Precision::kFp64 ? at::kDouble : at::kFloat;
  options.working = spec.train.precision == Precision::kBf16 ? at::kBFloat16 : options.master;
  options.share = spec.optimizer.share;
  options.bucket_bytes = static_cast<size_t>(spec.train.bucket_mb * (1 << 20));
  options.clip_norm = spec.optimizer.clip_norm;
  options.hash_every = spec.train.hash_every;
  options.members = spec.train.threads_mode == ThreadsMode::kBatch ? static_cast<int>(spec.train.threads) : 1;
  options.channels_last = channels_last(choices);
  options.seed = spec.train.seed;
  return options;
}

BuiltStrategy make_strategy(const StrategyParts& parts) {
  const ExchangeSpec& exchange = parts.spec.exchange;
  const UpdateRule rule = make_update_rule(parts.spec.optimizer);
  const FlatReplicaOptions flat = flat_options(parts);
  Group& group = parts.around.group;
  const Clock& clock = parts.around.clock;
  const std::string& name = exchange.name;
  if (name == "all-reduce") return all_reduce(parts, rule);
  if (name == "central")
    return built<Central>(parts.factory, rule, flat, exchange.central == CentralMode::kDivided, group, clock);
  if (name == "local-sgd") return built<LocalSgd>(parts.factory, rule, flat, exchange.every, group, clock);
  if (name == "parallel-sgd") {
    const Combine combine = exchange.combine == "best" ? Combine::kBest : Combine::kAverage;
    return built<ParallelSgd>(parts.factory, rule, flat, steps_of_a_round(parts), combine, group, clock);
  }
  if (name == "admm") {
    const AdmmOptions admm{exchange.every, exchange.rho, exchange.adaptive_rho};
    return built<Admm>(parts.factory, rule, flat, admm, group, clock);
  }
  if (name == "gossip")
    return built<Gossip>(parts.factory, rule, flat, graph_of(exchange.graph), group, clock);
  throw ConfigError("exchange.name", name + " is no exchange; `starling strategies` lists them");
}

const std::vector<StrategyEntry>& strategies() {
  static const std::vector<StrategyEntry> kEntries = {
      {"all-reduce", "synchronous SGD: gradients are averaged over all ranks every step (default)",
       "bytes a rank = 2 (p-1)/p |W|; replicas bit-identical"},
      {"central",
       "one copy of weights and optimizer state in the host's shared memory (--central master|divided)",
       "resident_parameter_bytes = 1 x |W| a host"},
      {"local-sgd", "every rank trains by itself; weights are averaged every H steps (--every H)",
       "loss before and after averaging"},
      {"parallel-sgd",
       "samples are shuffled between ranks, each trains alone, a driver combines (--combine, --rounds)",
       "samples_moved, shuffle_bytes, shuffle_share, combines"},
      {"admm", "consensus ADMM: no shuffle; a penalty draws the ranks together (--every K, exchange.rho)",
       "primal_residual, dual_residual, samples_moved = 0"},
      {"gossip", "decentralised SGD: each rank mixes with its neighbours (--graph ring|torus|exponential)",
       "second_eigenvalue, disagreement"},
  };
  return kEntries;
}

}  // namespace starling
