// Asynchronous elastic averaging follows algorithms 1 and 2 of Zhang et al. (2015). Real processes train on
// the quadratic f_k(x) = ½‖A_k x − b_k‖² in fp64. The servers record the order in which they answer reads and
// apply pushes. A simulation in plain loops replays this order.
#include "starling/parallel/async_easgd.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <array>
#include <cmath>
#include <cstring>
#include <future>

#include "starling/base/error.h"
#include "starling/server/protocol.h"
#include "starling/server/quadratic_replay.h"
#include "starling/server/serve.h"
#include "starling/testing/forked_ranks.h"
#include "starling/testing/join_group.h"
#include "starling/testing/run_ranks.h"

namespace starling {
namespace {

constexpr size_t kX = 6, kY = 4, kDim = kX + kY;  // the model's two parameters, one per server
constexpr double kLr = 0.1, kElastic = 0.6;
constexpr int kServers = 2;

const Quadratic& problem() {
  static const Quadratic quadratic(4, kDim);
  return quadratic;
}

at::Tensor tensor_of(const Values& values) {
  return torch::tensor(values, torch::kDouble);
}

// The function f_k of the quadratic; the batch is (A_k, b_k). The buffer holds the first number of b_k.
Model quadratic_model() {
  auto module = std::make_shared<torch::nn::Module>();
  const Values& start = problem().start();
  module->register_parameter("x", tensor_of({start.begin(), start.begin() + kX}));
  module->register_parameter("y", tensor_of({start.begin() + kX, start.end()}));
  const at::Tensor seen = module->register_buffer("seen", torch::zeros({1}, torch::kDouble));
  Model model;
  model.module = module;
  model.forward = [m = module.get()](const at::Tensor& a) {
    const auto parameters = m->named_parameters();
    return a.matmul(torch::cat({parameters["x"], parameters["y"]}));
  };
  model.loss = [seen](const at::Tensor& y, const at::Tensor& b) {
    seen.fill_(b[0].item<double>());
    return (y - b).square().sum() / 2;
  };
  return model;
}

Batch batch_of(int worker) {
  return {tensor_of(problem().a(worker)).view({kDim, kDim}), tensor_of(problem().b(worker))};
}

struct Job {
  OptimizerSpec rule;
  AsyncEasgdOptions options;
  ServerOptions server;
  ServerRendezvous rendezvous;

  explicit Job(int workers, int64_t every = 3, double momentum = 0, bool nesterov = false,
               int servers = kServers) {
    rule.momentum = momentum;
    rule.nesterov = nesterov;
    options.every = every;
    options.elastic = kElastic;
    options.replica.master = options.replica.working = at::kDouble;
    rendezvous.workers = server.workers = workers;
    rendezvous.servers = servers;
    rendezvous.server_timeout = std::chrono::seconds(30);
    server.record_events = true;
    make_center(server);
  }
  std::unique_ptr<AsyncEasgd> join(int worker, Store& store, const Clock& clock,
                                   Group* workers = nullptr) const {
    AsyncEasgdOptions own = options;
    own.loads = worker == 0;
    own.replica.rank = worker;
    return std::make_unique<AsyncEasgd>(quadratic_model, make_update_rule(rule), own, store, rendezvous,
                                        worker, workers, clock);
  }
  ServeReport serve(int shard, Store& store) const {
    return serve_shard(store, rendezvous, shard, server, DataType::kFp64);
  }
  double alpha() const { return options.elastic / server.workers; }
};

Values parameters_of(const StrategyState& state) {
  Values out;
  for (const char* name : {"x", "y"}) {
    const at::Tensor t = state.parameters.at(name).contiguous();
    out.insert(out.end(), t.data_ptr<double>(), t.data_ptr<double>() + t.numel());
  }
  return out;
}

// Returns the parameters that the model shows.
Values shown(AsyncEasgd& strategy) {
  StrategyState state;
  for (const NamedTensor& p : strategy.evaluated().parameters) state.parameters[p.name] = p.tensor.detach();
  return parameters_of(state);
}

StepReport one_step(Strategy& strategy, int worker, int64_t step, double lr = kLr, bool stop = false) {
  strategy.begin_step({step, lr, stop});
  strategy.forward_backward(batch_of(worker));
  return strategy.update();
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
std::string key_of(const char* what, int number) {
  return std::string(what) + "/" + std::to_string(number);
}

// The variables of one worker in the paper: x and v. Its parameters in Starling are x + δ v with Nesterov's
// momentum, and otherwise x.
struct PaperWorker {
  Values x, v;
  int64_t t = 0;

  // One turn of the loop of algorithm 2, which is algorithm 1 if δ is 0. `center` is what the worker has
  // read, if τ divides t. Returns α (x − c), or nothing without an exchange.
  Values turn(const Job& job, int k, const Values& center) {
    const double delta = job.rule.momentum;
    Values at = x;
    for (size_t i = 0; i < kDim && job.rule.nesterov; ++i) at[i] += delta * v[i];
    const Values g = problem().gradient(k, at);
    Values moved;
    if (t++ % job.options.every == 0) {
      for (size_t i = 0; i < kDim; ++i) moved.push_back(job.alpha() * (x[i] - center[i]));
      for (size_t i = 0; i < kDim; ++i) x[i] -= moved[i];
    }
    for (size_t i = 0; i < kDim; ++i) {
      v[i] = delta * v[i] - kLr * g[i];
      x[i] += v[i];
    }
    return moved;
  }
  Values parameters(const Job& job) const {
    Values out = x;
    for (size_t i = 0; i < kDim && job.rule.nesterov; ++i) out[i] += job.rule.momentum * v[i];
    return out;
  }
};

// Replays the order of events that each shard recorded.
class CenterReplay {
 public:
  CenterReplay(const Job& job, int64_t steps)
      : job_(job), steps_(steps), center_(problem().start()), workers_(job.server.workers) {}

  // Returns false if no order of all events is possible.
  bool run(const std::vector<std::vector<ServerTableEvent>>& logs) {
    std::vector<size_t> next(logs.size(), 0);
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t s = 0; s < logs.size(); ++s) {
        while (next[s] < logs[s].size() && carry_out(s, logs[s][next[s]])) {
          ++next[s];
          moved = true;
        }
      }
    }
    for (size_t s = 0; s < logs.size(); ++s) {
      if (next[s] != logs[s].size()) return false;
    }
    return true;
  }
  const Values& center() const { return center_; }
  Values parameters(int k) const { return workers_[k].worker.parameters(job_); }
  int64_t pushes() const { return pushes_; }

 private:
  struct Progress {
    PaperWorker worker;
    std::vector<Values> reads;                 // the first one is that of the start
    std::vector<std::array<bool, 2>> known;    // by read, then shard
    std::array<size_t, 2> read_of_shard = {};  // how many reads each shard has answered
    std::vector<Values> moved;                 // by exchange
  };

  static size_t shard_of(size_t i) { return i < kX ? 0 : 1; }

  bool carry_out(size_t shard, const ServerTableEvent& e) {
    Progress& p = workers_[static_cast<size_t>(e.worker)];
    if (e.action == ServerTableAction::kRetire) return true;
    if (e.action == ServerTableAction::kRead) {
      const size_t number = p.read_of_shard[shard]++;
      if (p.reads.size() <= number) {
        p.reads.emplace_back(kDim);
        p.known.push_back({false, false});
      }
      for (size_t i = 0; i < kDim; ++i) {
        if (shard_of(i) == shard) p.reads[number][i] = center_[i];
      }
      p.known[number][shard] = true;
      if (p.known[number][0] && p.known[number][1]) train(static_cast<int>(e.worker), p, number);
      return true;
    }
    EXPECT_EQ(e.action, ServerTableAction::kPush);
    const auto exchange = static_cast<size_t>(e.clock);
    if (p.moved.size() <= exchange) return false;
    for (size_t i = 0; i < kDim; ++i) {
      if (shard_of(i) == shard) center_[i] += p.moved[exchange][i];
    }
    ++pushes_;
    return true;
  }

  // Lets the worker go on until its next exchange.
  void train(int k, Progress& p, size_t read) {
    if (read == 0) {
      p.worker.x = p.reads[0];
      p.worker.v.assign(kDim, 0);
      return;
    }
    p.moved.push_back(p.worker.turn(job_, k, p.reads[read]));
    while (p.worker.t < steps_ && p.worker.t % job_.options.every != 0) p.worker.turn(job_, k, {});
  }

  const Job& job_;
  const int64_t steps_;
  Values center_;
  std::vector<Progress> workers_;
  int64_t pushes_ = 0;
};

void expect_near(const Values& found, const Values& expected, double tolerance, const std::string& what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], tolerance) << what << ' ' << i;
}

struct Case {
  double momentum;
  bool nesterov;
};
constexpr Case kCases[] = {{0, false}, {0.7, false}, {0.7, true}};

// With one worker, no order of events is open.
TEST(AsyncEasgd, OneWorkerFollowsAlgorithms1And2) {
  constexpr int64_t kSteps = 40;
  for (const Case& c : kCases) {
    const Job job(1, 3, c.momentum, c.nesterov, 1);
    run_ranks(2, [&](const ThreadRank& at) {
      if (at.rank == 1) return void(job.serve(0, *at.store));
      const SystemClock clock;
      const auto strategy = job.join(0, *at.store, clock);
      Values center = problem().start();
      PaperWorker worker{center, Values(kDim, 0)};
      for (int64_t step = 1; step <= kSteps; ++step) {
        one_step(*strategy, 0, step);
        const Values moved = worker.turn(job, 0, center);
        for (size_t i = 0; i < moved.size(); ++i) center[i] += moved[i];
        expect_near(parameters_of(strategy->own_state()), worker.parameters(job), 1e-10, "worker");
      }
      strategy->consensus();
      expect_near(shown(*strategy), center, 1e-10, "center");
      expect_near(parameters_of(strategy->state()), center, 1e-10, "saved center");
      EXPECT_EQ(strategy->strategy_stats().at("exchanges"), 14);  // τ divides t = 0, 3, …, 39
      double squares = 0;
      for (size_t i = 0; i < kDim; ++i) squares += std::pow(worker.x[i] - center[i], 2);
      EXPECT_GT(squares, 1e-4) << "the worker keeps a distance";
    });
  }
}

TEST(AsyncEasgd, WorkersFollowTheOrderOfTheServers) {
  constexpr int kWorkers = 4;
  constexpr int64_t kSteps = 30;
  for (const Case& c : kCases) {
    const Job job(kWorkers, 2, c.momentum, c.nesterov);
    ForkedRanks ranks(kWorkers + kServers, [&](int rank, Store& store) {
      at::set_num_threads(1);
      if (rank >= kWorkers)
        return put(store, key_of("events", rank - kWorkers),
                   encode_events(job.serve(rank - kWorkers, store).events));
      const SystemClock clock;
      const auto strategy = job.join(rank, store, clock);
      for (int64_t step = 1; step <= kSteps; ++step) one_step(*strategy, rank, step);
      strategy->consensus();
      put(store, key_of("center", rank), shown(*strategy));
      put(store, key_of("own", rank), parameters_of(strategy->own_state()));
    });
    ranks.wait_all();
    std::vector<std::vector<ServerTableEvent>> logs;
    for (int s = 0; s < kServers; ++s)
      logs.push_back(decode_events(take<int64_t>(ranks.store(), key_of("events", s)), "server"));
    CenterReplay replay(job, kSteps);
    ASSERT_TRUE(replay.run(logs));
    EXPECT_EQ(replay.pushes(), kServers * kWorkers * kSteps / 2);
    for (int k = 0; k < kWorkers; ++k) {
      expect_near(take<double>(ranks.store(), key_of("center", k)), replay.center(), 1e-10, "center");
      expect_near(take<double>(ranks.store(), key_of("own", k)), replay.parameters(k), 1e-10,
                  key_of("worker", k));
    }
  }
}

// Without gradients, an exchange moves the center by what it takes from the worker, and all approach.
TEST(AsyncEasgd, ExchangesKeepTheSumAndDrawAllTogether) {
  constexpr int kWorkers = 3;
  const Job job(kWorkers, 1);
  ForkedRanks ranks(kWorkers + kServers, [&](int rank, Store& store) {
    at::set_num_threads(1);
    if (rank >= kWorkers) return void(job.serve(rank - kWorkers, store));
    const SystemClock clock;
    const auto strategy = job.join(rank, store, clock);
    const auto tell = [&](const std::string& when) {
      strategy->consensus();
      put(store, key_of((when + "/center").c_str(), rank), shown(*strategy));
      put(store, key_of((when + "/own").c_str(), rank), parameters_of(strategy->own_state()));
    };
    for (int64_t step = 1; step <= 6; ++step) one_step(*strategy, rank, step);
    tell("before");
    for (int64_t step = 7; step <= 206; ++step) {
      one_step(*strategy, rank, step, 0);
      if (step % 5 == 0) strategy->consensus();  // no worker ends long before the others
    }
    tell("after");
  });
  ranks.wait_all();
  const auto sum_of = [&](const std::string& when) {
    Values sum = take<double>(ranks.store(), key_of((when + "/center").c_str(), 0));
    for (int k = 0; k < kWorkers; ++k) {
      const Values own = take<double>(ranks.store(), key_of((when + "/own").c_str(), k));
      for (size_t i = 0; i < kDim; ++i) sum.at(i) += own.at(i);
    }
    return sum;
  };
  expect_near(sum_of("after"), sum_of("before"), 1e-12, "sum");
  double before = 0, after = 0;
  for (int k = 0; k < kWorkers; ++k) {
    for (size_t i = 0; i < kDim; ++i) {
      const auto gap = [&](const std::string& when) {
        return std::abs(take<double>(ranks.store(), key_of((when + "/own").c_str(), k))[i] -
                        take<double>(ranks.store(), key_of((when + "/center").c_str(), k))[i]);
      };
      before = std::max(before, gap("before"));
      after = std::max(after, gap("after"));
    }
  }
  EXPECT_GT(before, 1e-2);
  EXPECT_LT(after, 1e-9);
}

// A step with an exchange takes |W| up, |W| down and three heads per shard. Any other step takes nothing.
TEST(AsyncEasgd, BytesAreThoseOfTheFormula) {
  constexpr int kWorkers = 2;
  const Job job(kWorkers, 4);
  run_ranks(kWorkers + kServers, [&](const ThreadRank& at) {
    if (at.rank >= kWorkers) return void(job.serve(at.rank - kWorkers, *at.store));
    const SystemClock clock;
    const auto strategy = job.join(at.rank, *at.store, clock);
    one_step(*strategy, at.rank, 1);
    uint64_t before[kServers] = {};
    const auto received = [&](int shard) {
      return strategy->bytes_from_servers()[static_cast<size_t>(shard)];
    };
    for (int s = 0; s < kServers; ++s) before[s] = received(s);
    for (int64_t step = 2; step <= 13; ++step) {
      const bool exchanges = (step - 1) % 4 == 0;
      const StepReport report = one_step(*strategy, at.rank, step);
      EXPECT_EQ(report.bytes_sent, exchanges ? 8 * kDim + kServers * 2 * kHeadBytes : 0) << "step " << step;
      for (int s = 0; s < kServers; ++s) {
        EXPECT_EQ(received(s) - before[s], exchanges ? 8 * (s == 0 ? kX : kY) + kHeadBytes : 0)
            << "step " << step;
        before[s] = received(s);
      }
    }
    EXPECT_EQ(strategy->strategy_stats().at("bytes_per_step_formula"),
              (2 * 8 * kDim + kServers * 3 * kHeadBytes) / 4.0);
  });
}

TEST(AsyncEasgd, OneWorkerResumesBitForBit) {
  for (const char* name : {"sgd", "adam"}) {
    run_ranks(2, [&](const ThreadRank& at) {
      const SystemClock clock;
      const auto job_of = [&](int generation) {
        Job job(1, 3, 0.9, true, 1);
        job.rule.name = name;
        job.rendezvous.generation = generation;
        return job;
      };
      if (at.rank == 1) {
        for (int generation = 0; generation < 3; ++generation) job_of(generation).serve(0, *at.store);
        return;
      }
      const auto train = [&](int generation, int64_t first, int64_t last, const StrategyState* from) {
        const auto strategy = job_of(generation).join(0, *at.store, clock);
        if (from != nullptr) strategy->load_state(*from);
        for (int64_t step = first; step <= last; ++step) one_step(*strategy, 0, step);
        return strategy->state();
      };
      const StrategyState whole = train(0, 1, 11, nullptr);
      const StrategyState half = train(1, 1, 5, nullptr);  // between two exchanges
      const StrategyState rest = train(2, 6, 11, &half);
      EXPECT_EQ(whole.step, 11);
      EXPECT_EQ(parameters_of(rest), parameters_of(whole)) << name;
      EXPECT_EQ(whole.optimizer.size(), std::string(name) == "sgd" ? 4u : 6u);
      for (const auto& [key, tensor] : whole.optimizer)
        EXPECT_TRUE(tensor.equal(rest.optimizer.at(key))) << name << ' ' << key;
    });
  }
}

// A checkpoint has the parameters of every worker. A worker without saved ones starts at the center.
TEST(AsyncEasgd, EveryWorkerTakesItsOwnParametersFromACheckpoint) {
  constexpr int kWorkers = 2;
  StrategyState written;  // by worker 0, before the barrier
  run_ranks(kWorkers + 1, [&](const ThreadRank& at) {
    const SystemClock clock;
    Job job(kWorkers, 2, 0.5, false, 1);
    if (at.rank == kWorkers) {
      for (job.rendezvous.generation = 0; job.rendezvous.generation < 3; ++job.rendezvous.generation)
        job.serve(0, *at.store);
      return;
    }
    const auto workers = join_group(*at.store, at.rank, kWorkers);
    Values own, center;
    {
      const auto strategy = job.join(at.rank, *at.store, clock, workers.get());
      for (int64_t step = 1; step <= 4; ++step) one_step(*strategy, at.rank, step);
      strategy->consensus();
      center = shown(*strategy);
      // Buffers become their mean over the workers.
      const double mean = (problem().b(0)[0] + problem().b(1)[0]) / 2;
      EXPECT_NEAR(strategy->evaluated().buffers.at(0).tensor.item<double>(), mean, 1e-12);
      const StrategyState state = strategy->state();
      EXPECT_EQ(state.parameters.empty(), at.rank == 1);
      if (at.rank == 0) written = state;
      own = parameters_of(strategy->own_state());
    }
    barrier(*workers);
    EXPECT_EQ(parameters_of(written), center);
    EXPECT_FALSE(written.optimizer.at("x@0/x").equal(written.optimizer.at("x@1/x")));
    ++job.rendezvous.generation;
    {
      const auto strategy = job.join(at.rank, *at.store, clock, workers.get());
      strategy->load_state(written);
      EXPECT_EQ(parameters_of(strategy->own_state()), own);
      const StrategyState state = strategy->state();
      if (at.rank == 0) {
        const at::Tensor& momentum = state.optimizer.at("momentum@1/x");
        EXPECT_TRUE(momentum.equal(written.optimizer.at("momentum@1/x")));
        EXPECT_GT(momentum.abs().sum().item<double>(), 0);
      }
    }
    barrier(*workers);
    ++job.rendezvous.generation;
    StrategyState without = written;
    std::erase_if(without.optimizer,
                  [](const auto& entry) { return entry.first.find("@1/") != std::string::npos; });
    const auto strategy = job.join(at.rank, *at.store, clock, workers.get());
    strategy->load_state(without);
    EXPECT_EQ(parameters_of(strategy->own_state()), at.rank == 0 ? own : center);
    const StrategyState state = strategy->state();
    if (at.rank == 0) {
      EXPECT_EQ(state.optimizer.at("momentum@1/x").abs().sum().item<double>(), 0);
      EXPECT_TRUE(state.optimizer.at("momentum@0/x").equal(written.optimizer.at("momentum@0/x")));
    }
  });
}

TEST(AsyncEasgd, AWishToStopReachesAllAfterTheSameStep) {
  constexpr int kWorkers = 3;
  std::array<int64_t, kWorkers> last = {};
  run_ranks(kWorkers + kServers, [&](const ThreadRank& at) {
    const Job job(kWorkers, 2);
    if (at.rank >= kWorkers) return void(job.serve(at.rank - kWorkers, *at.store));
    const SystemClock clock;
    const auto strategy = job.join(at.rank, *at.store, clock);
    for (int64_t step = 1; last[static_cast<size_t>(at.rank)] == 0; ++step) {
      const bool wish = at.rank == 1 && step >= 4;
      if (one_step(*strategy, at.rank, step, kLr, wish).stop) last[static_cast<size_t>(at.rank)] = step;
    }
    strategy->consensus();
  });
  EXPECT_GT(last[0], 4);
  EXPECT_EQ(last[1], last[0]);
  EXPECT_EQ(last[2], last[0]);
}

// A worker that ends without a goodbye is lost. The other one learns of it at its next exchange and
// continues.
TEST(AsyncEasgd, ALostWorkerLeavesTheOthersTheCenter) {
  constexpr int kWorkers = 2;
  Job job(kWorkers, 2, 0, false, 1);
  job.options.survives_losses = true;
  ForkedRanks ranks(kWorkers + 1, [&](int rank, Store& store) {
    at::set_num_threads(1);
    if (rank == kWorkers) {
      const ServeReport report = job.serve(0, store);
      return put(store, "lost", std::vector<int64_t>{report.lost.at(0).worker});
    }
    const SystemClock clock;
    const auto workers = join_group(store, rank, kWorkers);
    const auto strategy = job.join(rank, store, clock, workers.get());
    const auto seen = [&] { return strategy->evaluated().buffers.at(0).tensor.item<double>(); };
    for (int64_t step = 1; step <= 3; ++step) one_step(*strategy, rank, step);
    strategy->consensus();
    EXPECT_NEAR(seen(), (problem().b(0)[0] + problem().b(1)[0]) / 2, 1e-12);
    if (rank == 0) {
      store.put("met", "");
      std::promise<void>().get_future().wait();  // until the test kills this process
    }
    int64_t step = 4;
    while (one_step(*strategy, rank, step).lost == 0) ++step;
    strategy->consensus();
    EXPECT_EQ(seen(), problem().b(1)[0]) << "a mean of buffers without the lost worker";
    const StrategyState state = strategy->state();
    EXPECT_EQ(strategy->lost_ranks(), std::set<int>{0});
    put(store, "center", parameters_of(state));
    put(store, "shown", shown(*strategy));
    put(store, "keys",
        std::vector<int64_t>{static_cast<int64_t>(state.optimizer.count("x@1/x")),
                             static_cast<int64_t>(state.optimizer.count("x@0/x"))});
  });
  ranks.store().get("met", std::chrono::seconds(60));
  ranks.signal(0, SIGKILL);
  EXPECT_EQ(ranks.wait(0), -SIGKILL);
  EXPECT_EQ(ranks.wait(1), 0) << ranks.store().try_get("error/1").value_or("");
  EXPECT_EQ(ranks.wait(kWorkers), 0);
  EXPECT_EQ(take<int64_t>(ranks.store(), "lost"), std::vector<int64_t>{0});
  EXPECT_EQ(take<int64_t>(ranks.store(), "keys"), (std::vector<int64_t>{1, 0}));
  ASSERT_EQ(take<double>(ranks.store(), "center").size(), kDim);
}

}  // namespace
}  // namespace starling
