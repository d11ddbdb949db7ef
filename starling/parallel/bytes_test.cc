// The bytes that exchanges count are those of their formulas, over shared memory and over TCP, for 2 to 8
// real processes. docs/explanation/exchanges.md has the formulas. codec/compressed_all_reduce_test.cc
// compares the bytes of each codec with its own formula. Ranks of ad-psgd have no steps in common, so
// ad_psgd_test.cc counts its bytes over a whole run. async_easgd_test.cc counts those of async-easgd, which
// has servers.
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>

#include "starling/base/clock.h"
#include "starling/comm/bootstrap.h"
#include "starling/comm/network/tcp_connections.h"
#include "starling/parallel/admm.h"
#include "starling/parallel/all_reduce/all_reduce.h"
#include "starling/parallel/central.h"
#include "starling/parallel/compressed_sgd.h"
#include "starling/parallel/easgd.h"
#include "starling/parallel/gossip.h"
#include "starling/parallel/local_sgd.h"
#include "starling/parallel/parallel_sgd.h"
#include "starling/parallel/sgp.h"
#include "starling/parallel/zero/zero.h"
#include "starling/testing/test_identity.h"
#include "starling/torch_testing/torch_group_processes.h"

namespace starling {
namespace {

constexpr int64_t kIn = 100, kHidden = 200, kOut = 50;
// Elements of the flat memory. Every parameter begins at a multiple of 64.
constexpr double kFirst = (kIn * kHidden + 32) + (kHidden + 56), kSecond = kHidden * kOut + 48 + (kOut + 14);
constexpr double kFlat = kFirst + kSecond;
constexpr double kBytes = 4 * kFlat;
constexpr int kSteps = 2;

ModelFactory small_mlp() {
  ModelSpec spec;
  spec.name = "mlp";
  spec.widths = {kIn, kHidden, kOut};
  return zoo_model(spec, {{kIn}, kOut, false});
}

using Make = std::function<std::unique_ptr<Strategy>(UpdateRule, FlatReplicaOptions, Group&, const Clock&)>;

// How an exchange is made, and the bytes that p ranks together send in a step by its formula.
struct Exchange {
  std::string name;
  Make make;
  // Empty: only the engines are compared. codec/compressed_all_reduce_test.cc has the formula, and for ZeRO
  // codec/coded_reduce_scatter_test.cc has it.
  std::function<double(double p)> formula;
  bool needs_windows = false;
};

template <typename S, typename... More>
Make flat_strategy(More... more) {
  return [more...](UpdateRule rule, const FlatReplicaOptions& options, Group& group, const Clock& clock) {
    return std::make_unique<S>(small_mlp(), std::move(rule), options, more..., group, clock);
  };
}

// Returns the number of ranks to which a rank sends on the exponential graph: rank + 2^j for all 2^j < p.
double degree_of_exponential(double p) {
  int degree = 0;
  for (int hop = 1; hop < static_cast<int>(p); hop *= 2) ++degree;
  return degree;
}

std::vector<Exchange> exchanges() {
  const auto ring_all_reduce = [](double p) { return 2 * (p - 1) * kBytes; };
  const Make all_reduce = [](UpdateRule rule, FlatReplicaOptions, Group& group, const Clock& clock) {
    return std::make_unique<AllReduce>(small_mlp(), std::move(rule), AllReduceOptions{}, group, clock);
  };
  // What p ranks send when a unit of ZeRO with so many elements is gathered, or reduced to its owners. The
  // share of each rank is a multiple of 64 elements.
  const auto unit = [](double p, double elements) {
    return p * (p - 1) * 4 * 64 * std::ceil(elements / (64 * p));
  };
  const auto zero = [](int stage, const std::string& word = "") -> Make {
    return [=](UpdateRule rule, const FlatReplicaOptions& options, Group& group, const Clock& clock) {
      ZeroOptions of_stage{stage, options};
      if (!word.empty()) of_stage.codec = parse_codec(word);
      return std::make_unique<Zero>(small_mlp(), std::move(rule), of_stage, group, clock);
    };
  };
  std::vector<Exchange> all = {
      {"all-reduce", all_reduce, ring_all_reduce},
      {"central-sharded", flat_strategy<Central>(true), ring_all_reduce, true},
      {"central-master", flat_strategy<Central>(false), ring_all_reduce, true},
      {"local-sgd", flat_strategy<LocalSgd>(int64_t{1}), ring_all_reduce},
      {"easgd", flat_strategy<Easgd>(int64_t{1}, 0.9), ring_all_reduce},
      {"parallel-sgd", flat_strategy<ParallelSgd>(int64_t{1}, Combine::kAverage, Batch{}), ring_all_reduce},
      {"admm", flat_strategy<Admm>(AdmmOptions{1, 0.5, true}), ring_all_reduce},
      {"gossip-ring", flat_strategy<Gossip>(GossipGraph::kRing),
       [](double p) { return p * (p > 2 ? 2 : 1) * kBytes; }},
      {"gossip-exponential", flat_strategy<Gossip>(GossipGraph::kExponential),
       [](double p) { return p * degree_of_exponential(p) * kBytes; }},
      {"sgp-ring",
       [](UpdateRule rule, const FlatReplicaOptions& options, Group& group, const Clock& clock) {
         return std::make_unique<Sgp>(small_mlp(), std::move(rule), options,
                                      out_neighbors_of("ring", group.size()), group, clock);
       },
       [](double p) { return p * (p > 2 ? 2 : 1) * (kBytes + 8); }},
      {"sgp-one-peer",
       [](UpdateRule rule, const FlatReplicaOptions& options, Group& group, const Clock& clock) {
         return std::make_unique<Sgp>(small_mlp(), std::move(rule), options,
                                      out_neighbors_of("one-peer", group.size()), group, clock);
       },
       [](double p) { return p * (kBytes + 8); }},
      {"zero2", zero(2), [unit](double p) { return 2 * unit(p, kFlat); }},
      {"zero2-fp16", zero(2, "fp16"), [unit](double p) { return (0.5 + 1) * unit(p, kFlat); }},
      {"zero1-1bit", zero(1, "1bit"), {}},
      {"zero2-prune", zero(2, "prune:keep=0.01"), {}},
      {"zero2-lowrank", zero(2, "lowrank:rank=4"), {}},
      {"zero3", zero(3), [unit](double p) { return 3 * (unit(p, kFirst) + unit(p, kSecond)); }}};
  for (const char* word :
       {"fp16", "int8", "1bit", "prune:keep=0.01", "threshold:tau=0.01", "lowrank:rank=4", "random-k", "qsgd",
        "terngrad", "signsgd", "dgc", "prune+int8", "lowrank+fp16:rank=4"})
    all.push_back({word, flat_strategy<CompressedSgd>(parse_codec(word)), {}});
  return all;
}

std::unique_ptr<Group> join_over_tcp(Store& store, const Group& whole) {
  GroupSetup setup;
  setup.rank = whole.rank();
  setup.size = whole.size();
  setup.options.timeout = std::chrono::seconds(60);
  setup.options.shared_memory = false;
  setup.options.algorithm = Algorithm::kDirect;
  setup.connect = tcp_connector("127.0.0.1", test_identity("bytes"));
  std::vector<int> all;
  for (int r = 0; r < whole.size(); ++r) all.push_back(r);
  return make_group(store, subset_of(setup, "tcp", all));
}

// Returns what this rank counts in kSteps steps after the first one.
double bytes_of(const Exchange& exchange, Group& group) {
  const SystemClock clock;
  FlatReplicaOptions options;
  options.rank = group.rank();
  const auto strategy = exchange.make(make_update_rule(OptimizerSpec{}), options, group, clock);
  double before = 0, counted = 0;
  for (int step = 1; step <= 1 + kSteps; ++step) {
    if (step == 2) before = static_cast<double>(group.traffic().sent());
    strategy->begin_step({step, 0.01, false});
    strategy->forward_backward(
        {torch::full({4, kIn}, 0.01 * (group.rank() + step)), torch::zeros({4}, torch::kLong)});
    const StepReport report = strategy->update();
    if (step > 1) counted += static_cast<double>(report.bytes_sent);
  }
  return counted + static_cast<double>(group.traffic().sent()) - before;
}

TEST(Bytes, AreThoseOfTheFormulasInWindowsAndOverTcp) {
  for (int p = 2; p <= 8; ++p) {
    const auto of_ranks = numbers_of_processes(p, [](Group& windows, Store& store) {
      const auto tcp = join_over_tcp(store, windows);
      Numbers found;
      for (const Exchange& exchange : exchanges()) {
        found[exchange.name + "/windows"] = bytes_of(exchange, windows);
        if (!exchange.needs_windows) found[exchange.name + "/tcp"] = bytes_of(exchange, *tcp);
      }
      return found;
    });
    Numbers sum;
    for (const Numbers& rank : of_ranks) {
      for (const auto& [name, bytes] : rank) sum[name] += bytes / kSteps;
    }
    // Each step also sends a loss and a request to stop. A window shows these 16 bytes to all ranks.
    const double control = 2.0 * 16 * p * p;
    for (const Exchange& exchange : exchanges()) {
      SCOPED_TRACE(exchange.name + ", ranks " + std::to_string(p));
      const double in_windows = sum.at(exchange.name + "/windows");
      EXPECT_GT(in_windows, 0);
      if (exchange.formula) {
        EXPECT_NEAR(in_windows, exchange.formula(p), control);
      }
      if (!exchange.needs_windows) {
        EXPECT_NEAR(in_windows, sum.at(exchange.name + "/tcp"), control);
      }
    }
    const double plain = sum.at("all-reduce/tcp");
    EXPECT_GT(plain / sum.at("fp16/tcp"), 1.95);
    EXPECT_GT(plain / sum.at("int8/tcp"), 3.7);
    EXPECT_GT(plain / sum.at("1bit/tcp"), 18);
  }
}

// lars and lamb need the norms of whole tensors. Under ZeRO each step therefore sums two numbers per tensor
// over all ranks.
TEST(Bytes, LayerRulesUnderZeroAddTwoNumbersPerTensor) {
  for (const int p : {2, 3, 4}) {
    const auto of_ranks = numbers_of_processes(p, [](Group& group, Store&) {
      Numbers found;
      for (const char* rule : {"sgd", "lars", "lamb"}) {
        for (const int stage : {1, 2}) {
          const Make make = [=](UpdateRule, const FlatReplicaOptions& options, Group& group,
                                const Clock& clock) {
            OptimizerSpec spec;
            spec.name = rule;
            return std::make_unique<Zero>(small_mlp(), make_update_rule(spec), ZeroOptions{stage, options},
                                          group, clock);
          };
          found[rule + std::to_string(stage)] = bytes_of({rule, make, {}}, group);
        }
      }
      return found;
    });
    Numbers sum;
    for (const Numbers& rank : of_ranks) {
      for (const auto& [name, bytes] : rank) sum[name] += bytes / kSteps;
    }
    constexpr int kTensors = 4;
    for (const std::string stage : {"1", "2"}) {
      for (const std::string rule : {"lars", "lamb"})
        EXPECT_EQ(sum.at(rule + stage) - sum.at("sgd" + stage), p * (p - 1) * 2 * 8 * kTensors)
            << rule << ", ZeRO " << stage << ", ranks " << p;
    }
  }
}

}  // namespace
}  // namespace starling
