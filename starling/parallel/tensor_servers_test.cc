// Parameter servers and a tensor axis: each rank of a replica pushes and pulls its slices of the layers. The
// tests run real processes in fp64 and compare them with a run without a tensor axis.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>

#include "starling/base/error.h"
#include "starling/parallel/one_process_test_training.h"
#include "starling/parallel/parameter_server.h"
#include "starling/parallel/tensor_parallel.h"
#include "starling/server/serve.h"
#include "starling/testing/forked_ranks.h"
#include "starling/testing/join_group.h"
#include "starling/testing/run_ranks.h"
#include "starling/torch_testing/tensor_difference.h"

namespace starling {
namespace {

using Named = std::map<std::string, at::Tensor>;

constexpr int64_t kBatch = 8;
constexpr double kLr = 0.05;

ModelFactory gpt() {
  ModelSpec spec;
  spec.name = "gpt";
  spec.layers = 1;
  spec.width = 16;
  spec.heads = 2;
  spec.tokens = 5;
  return zoo_model(spec, {{5}, 11, true});
}

Batch batch_of(int64_t step) {
  torch::Generator generator = at::detail::createCPUGenerator(static_cast<uint64_t>(100 + step));
  const auto tokens = [&] { return torch::randint(0, 11, {kBatch, 5}, generator, torch::kLong); };
  const at::Tensor input = tokens();
  return {input, tokens()};
}

// A run of `replicas` replicas, each on `slices` ranks, with `servers` server processes.
struct Job {
  int replicas = 1, slices = 1;
  ParameterServerOptions options;
  ServerRendezvous rendezvous;

  Job(int of_replicas, int of_slices, int servers, std::optional<int64_t> staleness, const std::string& rule)
      : replicas(of_replicas), slices(of_slices) {
    const int workers = replicas * slices;
    options.server.workers = rendezvous.workers = workers;
    options.server.staleness = staleness;
    options.server.optimizer.name = rule;
    if (!staleness) options.server.lambda.assign(static_cast<size_t>(workers), 1.0 / replicas);
    options.replica.master = options.replica.working = at::kDouble;
    rendezvous.servers = servers;
    rendezvous.server_timeout = std::chrono::seconds(30);
  }
  int workers() const { return replicas * slices; }
};

// A worker with its groups.
class Worker {
 public:
  Worker(const Job& job, int rank, Store& store, const std::string& run) : job_(job), rank_(rank) {
    world_ = join_group(store, rank, job.workers());
    std::vector<int> row, column;
    for (int t = 0; t < job.slices; ++t) row.push_back(rank / job.slices * job.slices + t);
    for (int r = 0; r < job.replicas; ++r) column.push_back(r * job.slices + rank % job.slices);
    tensor_ = join_subset(store, *world_, run + "tensor", row);
    replica_ = join_subset(store, *world_, run + "replica", column);
    const auto make = [&](const ModelFactory& part, const ModelParts& parts) {
      ParameterServerOptions own = job.options;
      own.replica.parts = parts;
      own.replica.rank = rank;
      own.loads = rank < job.slices;
      return std::make_unique<ParameterServer>(part, own, store, job.rendezvous, rank, replica_.get(),
                                               clock_);
    };
    if (job.slices > 1) {
      strategy_ =
          std::make_unique<TensorParallel>(gpt(), *tensor_, std::vector<Group*>{tensor_.get()}, clock_, make,
                                           /*hash_every=*/1);
    } else {
      strategy_ = make(gpt(), {});
    }
  }
  Strategy& strategy() { return *strategy_; }

  StepReport step(int64_t step, bool stop = false) {
    const Batch whole = batch_of(step);
    const int64_t n = kBatch / job_.replicas, begin = rank_ / job_.slices * n;
    strategy_->begin_step({step, kLr, stop});
    strategy_->forward_backward({whole.input.narrow(0, begin, n), whole.target.narrow(0, begin, n)});
    return strategy_->update();
  }

 private:
  const Job& job_;
  const int rank_;
  SystemClock clock_;
  std::unique_ptr<Group> world_, tensor_, replica_;
  std::unique_ptr<Strategy> strategy_;
};

void put(Store& store, const std::string& key, const Named& tensors) {
  std::vector<double> all;
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor flat = tensor.to(at::kDouble).contiguous();
    all.insert(all.end(), flat.data_ptr<double>(), flat.data_ptr<double>() + flat.numel());
  }
  store.put(key, {reinterpret_cast<const char*>(all.data()), all.size() * sizeof(double)});
}
at::Tensor take(Store& store, const std::string& key) {
  const std::string bytes = store.try_get(key).value_or("");
  const at::Tensor out = at::empty({static_cast<int64_t>(bytes.size() / sizeof(double))}, at::kDouble);
  std::copy(bytes.begin(), bytes.end(), static_cast<char*>(out.data_ptr()));
  return out;
}

// Runs `body` on the workers, and the servers. Returns what worker 0 has put under the names.
std::vector<at::Tensor> run(const Job& job, const std::vector<std::string>& names,
                            const std::function<void(int, Store&)>& body) {
  ForkedRanks ranks(job.workers() + job.rendezvous.servers, [&](int rank, Store& store) {
    at::set_num_threads(1);
    if (rank < job.workers()) return body(rank, store);
    serve_shard(store, job.rendezvous, rank - job.workers(), job.options.server, DataType::kFp64);
  });
  ranks.wait_all();
  std::vector<at::Tensor> found;
  for (const std::string& name : names) found.push_back(take(ranks.store(), name));
  return found;
}

// Returns the parameters and the states of the optimizer after `steps` steps.
std::vector<at::Tensor> train(const Job& job, int64_t steps) {
  return run(job, {"parameters", "optimizer"}, [&](int rank, Store& store) {
    Worker worker(job, rank, store, "");
    for (int64_t step = 1; step <= steps; ++step) worker.step(step);
    worker.strategy().consensus();
    const StrategyState state = worker.strategy().state();
    if (rank != 0) return;
    put(store, "parameters", state.parameters);
    put(store, "optimizer", state.optimizer);
  });
}

TEST(TensorServers, OneReplicaMakesTheUpdatesOfOneWorker) {
  for (const auto& [rule, every] : {std::pair("sgd", 1), std::pair("adagrad", 3)}) {
    const auto with = [&, rule = rule, every = every](int slices, int servers) {
      Job job(1, slices, servers, std::nullopt, rule);
      job.options.n_push = job.options.n_fetch = every;
      job.options.replica.clip_norm = 0.5;
      return train(job, 7);
    };
    const auto whole = with(1, 1);
    for (const int servers : {1, 3}) {
      const auto sharded = with(2, servers);
      for (size_t i = 0; i < whole.size(); ++i) {
        ASSERT_GT(whole[i].numel(), 0) << rule;
        ASSERT_EQ(sharded[i].numel(), whole[i].numel()) << rule;
        EXPECT_LE(relative_difference(sharded[i], whole[i]), 1e-10) << rule << ", " << servers << " servers";
      }
    }
  }
}

TEST(TensorServers, SynchronousReplicasMakeTheUpdatesOfOneProcess) {
  const Job job(2, 2, 2, 0, "sgd");
  const auto found = train(job, 4);
  Named expected =
      train_one_process(gpt(), batch_of, job.options.server.optimizer, 4, {.lr = kLr, .clip = 0});
  std::vector<at::Tensor> flat;
  for (const auto& [name, tensor] : expected) flat.push_back(tensor.flatten());
  EXPECT_LE(relative_difference(found[0], at::cat(flat)), 1e-10);
}

// Each rank pushes its slices to the shards of its place in the replica. After every step the ranks of a
// replica compare their copies bit for bit (TensorParallel). They stop after one and the same step.
TEST(TensorServers, AsynchronousReplicasKeepTheirCopiesAndStopTogether) {
  Job job(2, 2, 2, std::nullopt, "sgd");
  job.options.server.optimizer.momentum = 0;
  const auto found = run(job, {"stops"}, [&](int rank, Store& store) {
    Worker worker(job, rank, store, "");
    int64_t last = 0;
    for (int64_t step = 1; last == 0; ++step) {
      const StepReport report = worker.step(step, rank == 3 && step >= 3);
      if (!std::isfinite(report.loss)) throw Error(ErrorCode::kInternal, "a loss is not finite");
      if (report.stop) last = step;
    }
    worker.strategy().consensus();
    const StrategyStats stats = worker.strategy().strategy_stats();
    for (int w = 0; w < 4; ++w) {
      for (int shard = 0; shard < 2; ++shard) {
        const double pushes = stats.at(fmt::format("pushes_{}_{}", w, shard));
        if (pushes != (w % 2 == shard ? static_cast<double>(last) : 0))
          throw Error(ErrorCode::kInternal, fmt::format("worker {} made {} pushes to shard {} in {} steps", w,
                                                        pushes, shard, last));
      }
    }
    if (rank == 0)
      put(store, "stops", {{"last", torch::tensor({static_cast<double>(last)}, torch::kDouble)}});
  });
  EXPECT_GT(found[0].item<double>(), 3);
}

// All ranks load one state, as they would from a file.
TEST(TensorServers, AReplicaResumesBitForBit) {
  const Job job(1, 2, 2, std::nullopt, "adagrad");
  StrategyState whole, half, rest;  // of rank 0
  run_ranks(4, [&](const ThreadRank& at) {
    if (at.rank >= 2) {
      ServerRendezvous rendezvous = job.rendezvous;
      for (; rendezvous.generation < 3; ++rendezvous.generation)
        serve_shard(*at.store, rendezvous, at.rank - 2, job.options.server, DataType::kFp64);
      return;
    }
    const auto meeting = join_group(*at.store, at.rank, 2);
    const auto part = [&](int generation, int64_t first, int64_t last, const StrategyState* from) {
      Job own = job;
      own.rendezvous.generation = generation;
      Worker worker(own, at.rank, *at.store, fmt::format("run {} ", generation));
      // Ranks are threads here. A step seeds the generator from which another rank may still draw its model.
      barrier(*meeting);
      if (from != nullptr) worker.strategy().load_state(*from);
      for (int64_t step = first; step <= last; ++step) worker.step(step);
      worker.strategy().consensus();
      return worker.strategy().state();
    };
    const auto keep = [&](StrategyState& kept, StrategyState state) {
      if (at.rank == 0) kept = std::move(state);
      barrier(*meeting);
    };
    keep(whole, part(0, 1, 6, nullptr));
    keep(half, part(1, 1, 3, nullptr));
    keep(rest, part(2, 4, 6, &half));
  });
  EXPECT_EQ(whole.step, 6);
  ASSERT_EQ(rest.optimizer.size(), whole.optimizer.size());
  for (const auto& [name, tensor] : whole.parameters)
    EXPECT_TRUE(tensor.equal(rest.parameters.at(name)))
        << name << " differs by " << (tensor - rest.parameters.at(name)).abs().max().item<double>();
  for (const auto& [name, tensor] : whole.optimizer)
    EXPECT_TRUE(tensor.equal(rest.optimizer.at(name))) << name;
  EXPECT_FALSE(half.parameters.begin()->second.equal(whole.parameters.begin()->second));
}

}  // namespace
}  // namespace starling
