// The parameter server as a strategy, with torch models on real processes in fp64. The tests compare it with
// all-reduce and with a replay of the recorded events (server/quadratic_replay.h).
#include "starling/parallel/parameter_server.h"

#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstring>
#include <numeric>

#include "starling/base/error.h"
#include "starling/parallel/all_reduce/all_reduce.h"
#include "starling/server/quadratic_replay.h"
#include "starling/server/serve.h"
#include "starling/testing/forked_ranks.h"
#include "starling/testing/join_group.h"
#include "starling/testing/run_ranks.h"
#include "starling/torch_testing/torch_group_processes.h"

namespace starling {
namespace {

constexpr int kWorkers = 4;
constexpr int kServers = 2;
constexpr int kSteps = 20;
constexpr int kFirstSteps = 4;
constexpr size_t kX = 6, kY = 4;  // the model's two parameters, one per server
constexpr double kLr = 0.1;

const Quadratic& problem() {
  static const Quadratic quadratic(kWorkers, kX + kY);
  return quadratic;
}

at::Tensor tensor_of(const Values& values, int64_t rows = 0) {
  const at::Tensor flat = torch::tensor(values, torch::kDouble);
  return rows > 0 ? flat.view({rows, -1}) : flat;
}

// The function f_k of the quadratic; the batch is (A_k, b_k).
Model quadratic_model() {
  auto module = std::make_shared<torch::nn::Module>();
  const Values& start = problem().start();
  module->register_parameter("x", tensor_of({start.begin(), start.begin() + kX}));
  module->register_parameter("y", tensor_of({start.begin() + kX, start.end()}));
  Model model;
  model.module = module;
  model.forward = [m = module.get()](const at::Tensor& a) {
    const auto parameters = m->named_parameters();
    return a.matmul(torch::cat({parameters["x"], parameters["y"]}));
  };
  model.loss = [](const at::Tensor& y, const at::Tensor& b) { return (y - b).square().sum() / 2; };
  return model;
}

Batch batch_of(int worker) {
  return {tensor_of(problem().a(worker), kX + kY), tensor_of(problem().b(worker))};
}

struct Job {
  ParameterServerOptions options;
  ServerRendezvous rendezvous;

  explicit Job(std::optional<int64_t> staleness, const std::string& rule = "sgd", int workers = kWorkers,
               int servers = kServers) {
    options.server.workers = workers;
    options.server.staleness = staleness;
    options.server.optimizer.name = rule;
    options.server.optimizer.momentum = 0.9;
    options.server.record_events = true;
    options.replica.master = options.replica.working = at::kDouble;
    rendezvous.workers = workers;
    rendezvous.servers = servers;
    rendezvous.server_timeout = std::chrono::seconds(30);
  }
  std::unique_ptr<ParameterServer> join(int worker, Store& store, const Clock& clock) const {
    ParameterServerOptions own = options;
    own.loads = worker == 0;
    own.replica.rank = worker;
    return std::make_unique<ParameterServer>(quadratic_model, own, store, rendezvous, worker, nullptr, clock);
  }
  ServeReport serve(int shard, Store& store) const {
    return serve_shard(store, rendezvous, shard, options.server, DataType::kFp64);
  }
};

Values x_of(const StrategyState& state) {
  Values out;
  for (const char* name : {"x", "y"}) {
    const at::Tensor t = state.parameters.at(name).contiguous();
    out.insert(out.end(), t.data_ptr<double>(), t.data_ptr<double>() + t.numel());
  }
  return out;
}

template <typename T>
void put(Store& store, const std::string& key, const std::vector<T>& values) {
  store.put(key, {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)});
}
template <typename T>
std::vector<T> take(Store& store, const std::string& key) {
  const std::string bytes = store.try_get(key).value_or("");
  std::vector<T> out(bytes.size() / sizeof(T));
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

StepReport one_step(Strategy& strategy, int worker, int step, bool stop = false) {
  strategy.begin_step({step, kLr, stop});
  strategy.forward_backward(batch_of(worker));
  return strategy.update();
}

struct Outcome {
  Values x;
  std::vector<std::vector<ServerTableEvent>> events;
  // Of worker 0: max_staleness, bytes_exchanged, bytes_per_step_formula, and the bytes of the steps after the
  // first kFirstSteps.
  Values numbers;
};

Outcome run(const Job& job) {
  ForkedRanks ranks(kWorkers + kServers, [&](int rank, Store& store) {
    at::set_num_threads(1);
    if (rank >= kWorkers) {
      const int shard = rank - kWorkers;
      return put(store, "events/" + std::to_string(shard), encode_events(job.serve(shard, store).events));
    }
    const SystemClock clock;
    const auto strategy = job.join(rank, store, clock);
    const auto received = [&] {
      const std::vector<uint64_t> bytes = strategy->bytes_from_servers();
      return static_cast<double>(std::accumulate(bytes.begin(), bytes.end(), uint64_t{0}));
    };
    double moved = 0;
    for (int step = 1; step <= kSteps; ++step) {
      const StepReport report = one_step(*strategy, rank, step);
      if (step == kFirstSteps) moved = -received();
      if (step > kFirstSteps) moved += static_cast<double>(report.bytes_sent);
    }
    moved += received();
    auto of = strategy->strategy_stats();
    if (rank == 0)
      put(store, "numbers",
          Values{of["max_staleness"], of["bytes_exchanged"], of["bytes_per_step_formula"], moved});
    strategy->consensus();
    const StrategyState state = strategy->state();
    if (rank == 0) put(store, "x", x_of(state));
  });
  ranks.wait_all();
  Outcome out{take<double>(ranks.store(), "x"), {}, take<double>(ranks.store(), "numbers")};
  for (int s = 0; s < kServers; ++s)
    out.events.push_back(
        decode_events(take<int64_t>(ranks.store(), "events/" + std::to_string(s)), "server"));
  return out;
}

void expect_equals_replay(const Job& job, const Outcome& out) {
  ReplayOptions options;
  options.workers = kWorkers;
  options.rule = job.options.server.optimizer.name;
  options.lr = kLr;
  options.weight_by_staleness = job.options.server.weight_by_staleness;
  // With a bound, reads may come from the worker's cache.
  options.client_cache = job.options.server.staleness.value_or(0) > 0;
  options.steps_a_push = static_cast<int>(job.options.n_push);
  options.shard_of.assign(kX, 0);
  options.shard_of.insert(options.shard_of.end(), kY, 1);
  Replay replay(problem(), options);
  ASSERT_TRUE(replay.run(out.events));
  ASSERT_EQ(out.x.size(), kX + kY);
  for (size_t i = 0; i < kX + kY; ++i) EXPECT_NEAR(out.x[i], replay.x()[i], 1e-10) << "element " << i;
}

Values all_reduce_result() {
  const auto of_ranks = values_of_processes(kWorkers, [&](Group& group, Store&) {
    const SystemClock clock;
    AllReduceOptions options;
    options.master = options.working = at::kDouble;
    OptimizerSpec spec;
    spec.momentum = 0.9;
    AllReduce strategy(quadratic_model, make_update_rule(spec), options, group, clock);
    for (int step = 1; step <= kSteps; ++step) one_step(strategy, group.rank(), step);
    const StrategyState state = strategy.state();
    return group.rank() == 0 ? x_of(state) : Values();
  });
  return of_ranks[0];
}

TEST(ParameterServerStrategy, AtStalenessZeroItEqualsAllReduceBitForBit) {
  const Outcome out = run(Job(0));
  ASSERT_EQ(out.x.size(), kX + kY);
  EXPECT_EQ(out.x, all_reduce_result());
  expect_equals_replay(Job(0), out);
  EXPECT_EQ(out.numbers[0], 0);
  // The bytes are those of twenty steps by the formula, one pull before the first step (heads and |W|), and
  // the messages that begin and end a run.
  EXPECT_GE(out.numbers[1], kSteps * out.numbers[2]);
  EXPECT_LE(out.numbers[1], (kSteps + 3) * out.numbers[2] + 4096);
}

// What the four workers have after kSteps in teams of `size`: the parameters, the loss of the last step, and
// the bytes of each worker: those exchanged with the servers, and all that it has sent in its steps
// but the first.
struct TeamOutcome {
  Values x, losses, bytes, sent;
};

TeamOutcome run_teams(int size) {
  const Job job(0);
  ForkedRanks ranks(kWorkers + kServers, [&](int rank, Store& store) {
    at::set_num_threads(1);
    if (rank >= kWorkers) {
      job.serve(rank - kWorkers, store);
      return;
    }
    const SystemClock clock;
    const auto whole = join_group(store, rank, kWorkers);
    std::vector<int> members;
    for (int r = rank / size * size; r < rank / size * size + size; ++r) members.push_back(r);
    const auto team = join_subset(store, *whole, "team", members);
    ParameterServerOptions own = job.options;
    own.loads = rank == 0;
    own.replica.rank = rank;
    own.team = size > 1 ? team.get() : nullptr;
    ParameterServer strategy(quadratic_model, own, store, job.rendezvous, rank, nullptr, clock);
    StepReport report;
    double sent = 0;
    for (int step = 1; step <= kSteps; ++step) {
      report = one_step(strategy, rank, step, step == kSteps && rank == 3);
      if (step > 1) sent += static_cast<double>(report.bytes_sent);  // the first step has one more pull
    }
    const double bytes = strategy.strategy_stats()["bytes_exchanged"];
    strategy.consensus();
    const Values seen = x_of(strategy.own_state());
    put(store, "seen/" + std::to_string(rank), seen);
    put(store, "of/" + std::to_string(rank), Values{report.loss, bytes, report.stop ? 1.0 : 0.0, sent});
    const StrategyState state = strategy.state();
    if (rank == 0) put(store, "x", x_of(state));
  });
  ranks.wait_all();
  TeamOutcome out{take<double>(ranks.store(), "x"), {}, {}, {}};
  for (int r = 0; r < kWorkers; ++r) {
    const Values of = take<double>(ranks.store(), "of/" + std::to_string(r));
    out.losses.push_back(of.at(0));
    out.bytes.push_back(of.at(1));
    out.sent.push_back(of.at(3));
    EXPECT_EQ(of.at(2), 1) << "worker " << r << " was not told that worker 3 asked to stop";
    EXPECT_EQ(take<double>(ranks.store(), "seen/" + std::to_string(r)), out.x) << "worker " << r;
  }
  return out;
}

TEST(ParameterServerStrategy, TeamsMakeTheUpdatesOfSingleRanksAndOnlyTheirLeadersSend) {
  const TeamOutcome alone = run_teams(1);
  EXPECT_EQ(alone.x, all_reduce_result());
  const double model_bytes = (kX + kY) * sizeof(double);
  const double step_bytes = 2 * model_bytes + 3 * kHeadBytes * kServers;
  for (const int size : {2, 4}) {
    const TeamOutcome teams = run_teams(size);
    ASSERT_EQ(teams.x.size(), kX + kY);
    for (size_t i = 0; i < kX + kY; ++i)
      EXPECT_NEAR(teams.x[i], alone.x[i], 1e-12) << size << ", element " << i;
    for (int r = 0; r < kWorkers; ++r) {
      EXPECT_NEAR(teams.losses[r], alone.losses[r], 1e-12) << size;
      if (r % size == 0) {
        EXPECT_GE(teams.bytes[r], kSteps * step_bytes) << size << ", worker " << r;
      } else {
        EXPECT_LT(teams.bytes[r], kSteps * step_bytes / 2) << size << ", worker " << r;
      }
    }
    // What a team sends in a step: an all-reduce of |W| and 24 bytes, and a broadcast of |W| and 48 bytes.
    // Only its leader talks to the servers. In the flat memory each parameter begins at a multiple of 64
    // elements. Each rank of a small all-reduce publishes all its values to each other rank.
    const double flat = 2 * 64 * sizeof(double);
    const double team = size * (size - 1) * (flat + 24) + (size - 1) * (flat + 48);
    double sent = 0;
    for (int r = 0; r < size; ++r) sent += teams.sent[r];
    EXPECT_EQ((sent - alone.sent[0]) / (kSteps - 1), team) << size;
  }
}

TEST(ParameterServerStrategy, StaleAndAsynchronousEqualTheirReplay) {
  Job stale(3, "adagrad");
  const Outcome out = run(stale);
  expect_equals_replay(stale, out);
  EXPECT_LE(out.numbers[0], 3);
  Job asynchronous(std::nullopt);
  asynchronous.options.server.weight_by_staleness = true;
  expect_equals_replay(asynchronous, run(asynchronous));
}

TEST(ParameterServerStrategy, DownpourPushesAndFetchesApart) {
  Job downpour(std::nullopt, "adagrad");
  downpour.options.n_push = downpour.options.n_fetch = 2;
  expect_equals_replay(downpour, run(downpour));
}

// A worker sends |W| and a head to each shard every n_push steps. Every n_fetch steps it gets |W| for a
// request, which are two heads.
TEST(ParameterServerStrategy, DownpourSendsTheBytesOfItsIntervals) {
  const double model_bytes = (kX + kY) * sizeof(double), heads = kHeadBytes * kServers;
  for (const auto& [n_push, n_fetch] : {std::pair<int64_t, int64_t>(1, 1), {2, 2}, {4, 2}, {2, 4}}) {
    Job downpour(std::nullopt, "adagrad");
    downpour.options.n_push = n_push;
    downpour.options.n_fetch = n_fetch;
    const Outcome out = run(downpour);
    const double per_step = (model_bytes + heads) / static_cast<double>(n_push) +
                            (model_bytes + 2 * heads) / static_cast<double>(n_fetch);
    EXPECT_NEAR(out.numbers[2], per_step, 1e-9) << n_push << " " << n_fetch;
    EXPECT_EQ(out.numbers[3], (kSteps - kFirstSteps) * per_step) << n_push << " " << n_fetch;
  }
}

TEST(ParameterServerStrategy, ResumesWhereItStopped) {
  for (const char* rule : {"sgd", "adam"}) {
    run_ranks(2, [&](const ThreadRank& at) {
      const SystemClock clock;
      const auto job_of = [&](int generation) {
        Job job(0, rule, 1, 1);
        job.rendezvous.generation = generation;
        return job;
      };
      if (at.rank == 1) {
        for (int generation = 0; generation < 3; ++generation) job_of(generation).serve(0, *at.store);
        return;
      }
      const auto train = [&](int generation, int first, int last, const StrategyState* from) {
        const auto strategy = job_of(generation).join(0, *at.store, clock);
        if (from != nullptr) strategy->load_state(*from);
        for (int step = first; step <= last; ++step) one_step(*strategy, 0, step);
        strategy->consensus();
        return strategy->state();
      };
      const StrategyState whole = train(0, 1, 10, nullptr);
      const StrategyState half = train(1, 1, 5, nullptr);
      const StrategyState rest = train(2, 6, 10, &half);
      EXPECT_EQ(x_of(rest), x_of(whole)) << rule;
      EXPECT_EQ(whole.step, 10);
      for (const auto& [name, tensor] : whole.optimizer)
        EXPECT_TRUE(tensor.equal(rest.optimizer.at(name))) << name;
      EXPECT_EQ(whole.optimizer.size(), std::string(rule) == "sgd" ? 3u : 5u);
    });
  }
}

ModelFactory small_mlp() {
  ModelSpec spec;
  spec.name = "mlp";
  spec.widths = {12, 9, 5};
  return zoo_model(spec, {{12}, 5, false});
}

// Two workers and one server (rank 2), synchronous, fp32, with codecs, from step `first` to step `last`.
struct CodedJob {
  Job job{0, "adam", 2, 1};
  CodedJob(const char* push, const char* pull) {
    job.options.server.push_codec = parse_codec(push);
    job.options.server.pull_codec = parse_weight_codec(pull);
    job.options.replica.master = job.options.replica.working = at::kFloat;
  }
  StrategyState train(const ThreadRank& at, Group& workers, int generation, int first, int last,
                      const StrategyState* from) {
    const SystemClock clock;
    job.rendezvous.generation = generation;
    ParameterServerOptions own = job.options;
    own.loads = at.rank == 0;
    ParameterServer strategy(small_mlp(), own, *at.store, job.rendezvous, at.rank, &workers, clock);
    if (from != nullptr) strategy.load_state(*from);
    for (int step = first; step <= last; ++step) {
      strategy.begin_step({step, kLr, false});
      torch::Generator generator = at::detail::createCPUGenerator(100 * step + at.rank);
      strategy.forward_backward(
          {torch::randn({6, 12}, generator), torch::randint(0, 5, {6}, generator, torch::kLong)});
      strategy.update();
      if (step == 6 && first == 1) strategy.consensus();  // an evaluation does not change the training
    }
    const auto print = strategy.strategy_stats();
    EXPECT_GT(print.at("push_compression"), 1.5);
    EXPECT_GT(print.at("pull_compression"), 1.4);
    EXPECT_NEAR(print.at("bytes_per_step_formula"),
                print.at("push_message_bytes") + print.at("pull_message_bytes") + 3 * kHeadBytes, 1e-9);
    strategy.consensus();
    return strategy.state();
  }
};

// A checkpoint contains what a codec keeps between pushes: residuals, and Q of PowerSGD.
TEST(ParameterServerStrategy, CodedRunsResumeBitForBit) {
  for (const auto& [push, pull] : {std::pair("1bit", "bf16"), std::pair("1bit", "int8"),
                                   std::pair("lowrank:rank=1", "lowrank:rank=3")}) {
    const StrategyState* written = nullptr;  // by rank 0, before the barrier
    run_ranks(3, [&, push = push, pull = pull](const ThreadRank& at) {
      CodedJob coded(push, pull);
      if (at.rank == 2) {
        for (int generation = 0; generation < 3; ++generation) {
          coded.job.rendezvous.generation = generation;
          serve_shard(*at.store, coded.job.rendezvous, 0, coded.job.options.server, DataType::kFp32);
        }
        return;
      }
      const auto workers = join_group(*at.store, at.rank, 2);
      const StrategyState whole = coded.train(at, *workers, 0, 1, 8, nullptr);
      const StrategyState half = coded.train(at, *workers, 1, 1, 4, nullptr);
      // All ranks load one state, as they would from a file.
      if (at.rank == 0) written = &half;
      barrier(*workers);
      const StrategyState rest = coded.train(at, *workers, 2, 5, 8, written);
      barrier(*workers);
      if (at.rank != 0) return;
      for (const auto& [name, tensor] : whole.parameters)
        EXPECT_TRUE(tensor.equal(rest.parameters.at(name))) << push << ' ' << name;
      for (const auto& [name, tensor] : whole.optimizer)
        EXPECT_TRUE(tensor.equal(rest.optimizer.at(name))) << push << ' ' << name;
      EXPECT_GT(whole.optimizer.at("push_codec@1/fc1.weight").abs().sum().item<float>(), 0) << push;
    });
  }
}

TEST(ParameterServerStrategy, AWishToStopReachesAllAfterTheSameStep) {
  run_ranks(3, [](const ThreadRank& at) {
    const SystemClock clock;
    const Job job(0, "sgd", 2, 1);
    if (at.rank == 2) {
      EXPECT_TRUE(job.serve(0, *at.store).lost.empty());
      return;
    }
    const auto strategy = job.join(at.rank, *at.store, clock);
    int last = 0;
    double loss = 0;
    for (int step = 1; step <= 10 && last == 0; ++step) {
      const StepReport report = one_step(*strategy, at.rank, step, at.rank == 1 && step == 4);
      if (step == 1) loss = report.loss;
      if (report.stop) last = step;
    }
    EXPECT_EQ(last, 4);
    // The expected loss is the mean over the workers of the first step's losses, equal on both workers.
    double sum = 0;
    for (int k = 0; k < 2; ++k) {
      const Model model = quadratic_model();
      sum += model.loss(model.forward(batch_of(k).input), batch_of(k).target).item<double>();
    }
    EXPECT_NEAR(loss, sum / 2, 1e-12 * sum);
  });
}

TEST(ParameterServerStrategy, RefusesWhatCannotBe) {
  const auto refusal = [](auto change) {
    Job job(0);
    change(job.options);
    try {
      check_parameter_server_options(job.options);
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(refusal([](auto&) {}), "");
  EXPECT_THAT(refusal([](auto& o) { o.n_push = 0; }), testing::HasSubstr("push_every is 0"));
  EXPECT_THAT(refusal([](auto& o) { o.n_fetch = 2; }), testing::HasSubstr("must be equal"));
  EXPECT_THAT(refusal([](auto& o) { o.server.staleness = -3; }), testing::HasSubstr("-3 is no staleness"));
}

}  // namespace
}  // namespace starling
