// Replicas of pipelines as processes: every exchange that trains whole models also trains stages, with equal
// results.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>
#include <optional>

#include "starling/parallel/admm.h"
#include "starling/parallel/all_reduce/all_reduce.h"
#include "starling/parallel/central.h"
#include "starling/parallel/compressed_sgd.h"
#include "starling/parallel/easgd.h"
#include "starling/parallel/gossip.h"
#include "starling/parallel/local_sgd.h"
#include "starling/parallel/parallel_sgd.h"
#include "starling/parallel/parameter_server.h"
#include "starling/parallel/pipeline/pipeline_test_task.h"
#include "starling/parallel/sgp.h"
#include "starling/parallel/zero/zero.h"
#include "starling/server/serve.h"
#include "starling/spec/mesh.h"

namespace starling {
namespace {

constexpr double kLr = 0.05;
constexpr int kReplicas = 2;

// A rank's position and groups.
struct Here {
  Here(const MeshSpec& of, int own, Store& store) : rank(own), mesh(of), place(place_of(of, own)) {
    at::set_num_threads(1);
    world = join_group(store, rank, static_cast<int>(mesh.ranks()));
    replicas = join_subset(store, *world, "replica", place.replica_ranks);
    stages = join_subset(store, *world, "stage", place.stage_ranks);
  }
  int rank;
  MeshSpec mesh;
  MeshPlace place;
  SystemClock clock;
  std::unique_ptr<Group> world, replicas, stages;
};

// Runs `body` on the processes of a mesh and, if `servers` > 0, `serve` on that many server shards.
void on_mesh(const MeshSpec& mesh, const std::function<void(Here&, Store&)>& body, int servers = 0,
             const std::function<void(int, Store&)>& serve = {}) {
  const int size = static_cast<int>(mesh.ranks());
  ForkedRanks ranks(size + servers, [&](int rank, Store& store) {
    if (rank >= size) return serve(rank - size, store);
    Here here(mesh, rank, store);
    body(here, store);
    barrier(*here.world);
  });
  ranks.wait_all();
}

Batch share_of(const Batch& batch, int replica, int replicas) {
  const int64_t n = batch.size() / replicas;
  return batch.part(replica * n, n);
}

// What an exchange is made of.
struct Part {
  const ModelFactory& factory;
  FlatReplicaOptions options;
  Group& group;
  const Clock& clock;
  const StageModel& stage;
};
using Make = std::function<std::unique_ptr<Strategy>(const Part&)>;

std::unique_ptr<Pipeline> pipeline_of(Here& here, const Task& task, const Form& form, const Make& make,
                                      double clip = 0, bool share_tied = false, bool fp32 = false) {
  PipelineOptions options = options_for(form.schedule, here.stages->size(), form.chunks, form.micro_batches);
  if (fp32) options.master = options.working = at::kFloat;
  options.replica = here.place.replica;
  options.share_tied = share_tied;
  const auto exchange = [&](const ModelFactory& factory, const StageModel& stage) {
    FlatReplicaOptions flat;
    flat.master = flat.working = options.master;
    flat.clip_norm = clip;
    flat.seed = options.seed;
    flat.rank = here.rank;
    flat.parts = stage.parts();
    return make({factory, flat, *here.replicas, here.clock, stage});
  };
  return std::make_unique<Pipeline>(task.factory, options, *here.stages, here.clock, exchange);
}

StepReport one_step(Strategy& strategy, const Here& here, const Task& task, int64_t step, bool stop = false) {
  strategy.begin_step({step, kLr, stop});
  strategy.forward_backward(
      share_of(task.batch(step), here.place.replica, static_cast<int>(here.mesh.replica)));
  return strategy.update();
}

Make all_reduce(const UpdateRule& rule) {
  return [rule](const Part& part) {
    AllReduceOptions options;
    options.master = options.working = part.options.master;
    options.clip_norm = part.options.clip_norm;
    options.seed = part.options.seed;
    options.parts = part.options.parts;
    options.bucket_bytes = 1000;
    return std::make_unique<AllReduce>(part.factory, rule, options, part.group, part.clock);
  };
}

Make zero(const UpdateRule& rule, int stage) {
  return [rule, stage](const Part& part) {
    ZeroOptions options{stage, part.options, 1000};
    return std::make_unique<Zero>(part.factory, rule, options, part.group, part.clock);
  };
}

// Every step equals a step of one process on the whole batch.
void compare(const Task& task, const MeshSpec& mesh, const Form& form, const std::string& optimizer_name,
             const std::function<Make(const UpdateRule&)>& make, double clip = 0) {
  on_mesh(mesh, [&](Here& here, Store&) {
    const OptimizerSpec spec = optimizer(optimizer_name);
    const auto pipeline = pipeline_of(here, task, form, make(make_update_rule(spec)), clip);
    for (int64_t step = 1; step <= 3; ++step) {
      const StepReport report = one_step(*pipeline, here, task, step);
      require(std::isfinite(report.loss) && report.loss > 0 && !report.stop, "the report is wrong");
      const StrategyState state = pipeline->state();
      if (here.rank == 0)
        require_equal(task, state, one_process(task, spec, static_cast<int>(step), clip), 1e-10,
                      fmt::format("step {}", step));
      require(here.rank == 0 || state.parameters.empty(), "a state elsewhere than on rank 0");
    }
    // Evaluation sees one whole model on every rank.
    pipeline->consensus();
    const Batch probe = task.batch(9);
    const at::Tensor input = probe.input.is_floating_point() ? probe.input.to(at::kDouble) : probe.input;
    const at::Tensor out = pipeline->replica().model.forward(input).detach().contiguous();
    at::Tensor sum = out.clone();
    all_reduce(*here.world, sum.data_ptr(), sum.numel(), DataType::kFp64, ReduceOp::kSum);
    require(relative_difference(sum, out * here.world->size()) < 1e-14,
            "the ranks evaluate different models");
  });
}

TEST(MeshTest, AllReduceOverStagesEqualsOneProcess) {
  compare(mlp_task(), {2, 2, 1}, {"1f1b"}, "adamw", all_reduce);
  compare(gpt_task(), {2, 2, 1}, {"interleaved", 2, 4}, "sgd", all_reduce, 0.1);  // clipped, tied
  compare(gpt_task(), {2, 3, 1}, {"gpipe", 1, 2}, "sgd", all_reduce);
  compare(llama_task(true), {2, 2, 1}, {"1f1b", 1, 2}, "adamw", all_reduce, 0.1);
}

TEST(MeshTest, ShardsAndCentralStorageOfAStageEqualOneProcess) {
  compare(gpt_task(), {2, 2, 1}, {"1f1b"}, "sgd", [](const UpdateRule& rule) { return zero(rule, 1); }, 0.1);
  compare(gpt_task(), {2, 2, 1}, {"1f1b"}, "adamw", [](const UpdateRule& rule) { return zero(rule, 2); });
  compare(mlp_task(), {2, 2, 1}, {"1f1b"}, "adamw", [](const UpdateRule& rule) -> Make {
    return [rule](const Part& part) {
      return std::make_unique<Central>(part.factory, rule, part.options, true, part.group, part.clock);
    };
  });
}

// The whole model of a replica as one vector, by name.
class Naive {
 public:
  explicit Naive(const Task& task) : task_(task), replica_(make_replica(task.factory, at::kDouble, 3)) {}

  at::Tensor initial() const {
    std::vector<at::Tensor> parts;
    for (const NamedTensor& p : replica_.parameters) parts.push_back(p.tensor.detach().flatten());
    return at::cat(parts);
  }
  // The gradient of replica k's samples of the step.
  at::Tensor gradient(const at::Tensor& x, int k, int64_t step, int replicas = kReplicas) {
    put(x);
    const Batch batch = share_of(task_.batch(step), k, replicas);
    const at::Tensor input = batch.input.is_floating_point() ? batch.input.to(at::kDouble) : batch.input;
    for (NamedTensor& p : replica_.parameters) p.tensor.mutable_grad().reset();
    replica_.model.loss(replica_.model.forward(input), batch.target).backward();
    std::vector<at::Tensor> parts;
    for (const NamedTensor& p : replica_.parameters) parts.push_back(p.tensor.grad().flatten());
    return at::cat(parts);
  }
  std::map<std::string, at::Tensor> named(const at::Tensor& x) {
    put(x);
    std::map<std::string, at::Tensor> result;
    for (const NamedTensor& p : replica_.parameters) result[p.name] = p.tensor.detach().clone();
    return result;
  }
  const Replica& replica() const { return replica_; }

 private:
  void put(const at::Tensor& x) {
    at::NoGradGuard no_grad;
    int64_t at = 0;
    for (NamedTensor& p : replica_.parameters) {
      p.tensor.copy_(x.narrow(0, at, p.tensor.numel()).view(p.tensor.sizes()));
      at += p.tensor.numel();
    }
  }
  const Task& task_;
  Replica replica_;
};

UpdateRule plain_sgd() {
  OptimizerSpec spec;
  spec.momentum = 0;
  return make_update_rule(spec);
}

// Compares the agreed model after kSteps with `expected`, which has one vector per replica.
void compare_agreed(const Task& task, const Make& make, const std::function<at::Tensor(Naive&)>& expected,
                    double clip = 0) {
  on_mesh({kReplicas, 2, 1}, [&](Here& here, Store&) {
    const auto pipeline = pipeline_of(here, task, {"1f1b", 1, 2}, make, clip);
    for (int64_t step = 1; step <= kSteps; ++step) one_step(*pipeline, here, task, step);
    pipeline->consensus();
    const StrategyState state = pipeline->state();
    if (here.rank != 0) return;
    Naive naive(task);
    require_equal(task, state, naive.named(expected(naive)), 1e-10, "agreed model");
  });
}

TEST(MeshTest, LocalSgdAveragesStages) {
  compare_agreed(
      gpt_task(),
      [](const Part& part) {
        return std::make_unique<LocalSgd>(part.factory, plain_sgd(), part.options, 2, part.group, part.clock);
      },
      [](Naive& naive) {
        std::vector<at::Tensor> x(kReplicas, naive.initial());
        for (int64_t step = 1; step <= kSteps; ++step) {
          for (int k = 0; k < kReplicas; ++k) {
            at::Tensor g = naive.gradient(x[k], k, step);
            const double norm = g.norm().item<double>();
            if (norm > 0.5) g = g * (0.5 / (norm + 1e-6));  // the norm of the whole model
            x[k] = x[k] - kLr * g;
          }
          if (step % 2 == 0) x.assign(kReplicas, (x[0] + x[1]) / 2);
        }
        return (x[0] + x[1]) / 2;
      },
      0.5);
}

TEST(MeshTest, GossipMixesStages) {
  compare_agreed(
      mlp_task(),
      [](const Part& part) {
        return std::make_unique<Gossip>(part.factory, plain_sgd(), part.options, GossipGraph::kRing,
                                        part.group, part.clock);
      },
      [](Naive& naive) {
        std::vector<at::Tensor> x(kReplicas, naive.initial());
        for (int64_t step = 1; step <= kSteps; ++step) {
          const at::Tensor mixed = (x[0] + x[1]) / 2;
          for (int k = 0; k < kReplicas; ++k) x[k] = mixed - kLr * naive.gradient(x[k], k, step);
        }
        return (x[0] + x[1]) / 2;
      });
}

TEST(MeshTest, ElasticAveragingDrawsStages) {
  compare_agreed(
      mlp_task(),
      [](const Part& part) {
        return std::make_unique<Easgd>(part.factory, plain_sgd(), part.options, 2, 0.6, part.group,
                                       part.clock);
      },
      [](Naive& naive) {
        std::vector<at::Tensor> x(kReplicas, naive.initial());
        at::Tensor center = naive.initial();
        for (int64_t step = 1; step <= kSteps; ++step) {
          for (int k = 0; k < kReplicas; ++k) x[k] = x[k] - kLr * naive.gradient(x[k], k, step);
          if (step % 2 != 0) continue;
          const at::Tensor mean = (x[0] + x[1]) / 2;
          for (at::Tensor& own : x) own = own - 0.3 * (own - center);
          center = center + 0.6 * (mean - center);
        }
        return center;
      });
}

TEST(MeshTest, StochasticGradientPushSendsStages) {
  compare_agreed(
      mlp_task(),
      [](const Part& part) {
        return std::make_unique<Sgp>(part.factory, plain_sgd(), part.options,
                                     out_neighbors_of("one-peer", kReplicas), part.group, part.clock);
      },
      [](Naive& naive) {
        std::vector<at::Tensor> x(kReplicas, naive.initial());
        for (int64_t step = 1; step <= kSteps; ++step) {
          for (int k = 0; k < kReplicas; ++k) x[k] = x[k] - kLr * naive.gradient(x[k], k, step);
          x.assign(kReplicas, (x[0] + x[1]) / 2);  // both weights stay 1
        }
        return x[0];
      });
}

// The residuals that adapt ρ are those of the whole model, so all stages have one ρ.
TEST(MeshTest, AdmmAdaptsToTheResidualsOfAllStages) {
  compare_agreed(
      mlp_task(),
      [](const Part& part) {
        return std::make_unique<Admm>(part.factory, plain_sgd(), part.options, AdmmOptions{2, 0.5, true},
                                      part.group, part.clock);
      },
      [](Naive& naive) {
        at::Tensor z = naive.initial();
        std::vector<at::Tensor> x(kReplicas, z), u(kReplicas, at::zeros_like(z));
        double rho = 0.5;
        for (int64_t step = 1; step <= kSteps; ++step) {
          for (int k = 0; k < kReplicas; ++k)
            x[k] = x[k] - kLr * (naive.gradient(x[k], k, step) + rho * (x[k] - z + u[k]));
          if (step % 2 != 0) continue;
          const at::Tensor before = z;
          z = (x[0] + u[0] + x[1] + u[1]) / 2;
          double squares = 0;
          for (int k = 0; k < kReplicas; ++k) {
            u[k] = u[k] + x[k] - z;
            squares += (x[k] - z).square().sum().item<double>();
          }
          const double primal = std::sqrt(squares);
          const double dual = rho * std::sqrt(2.0) * (z - before).norm().item<double>();
          const bool room = 2 * rho * kLr <= 0.5;
          const double factor = primal > 10 * dual && room ? 2 : dual > 10 * primal ? 0.5 : 1;
          rho *= factor;
          for (at::Tensor& v : u) v = v / factor;
        }
        return z;
      });
}

TEST(MeshTest, ParallelSgdTakesTheBestReplicaByTheLossOfItsPipeline) {
  compare_agreed(
      mlp_task(),
      [](const Part& part) {
        return std::make_unique<ParallelSgd>(part.factory, plain_sgd(), part.options, kSteps, Combine::kBest,
                                             share_of(mlp_task().batch(kSteps + 1), part.group.rank(), 2),
                                             part.group, part.clock);
      },
      [](Naive& naive) {
        std::vector<at::Tensor> x(kReplicas, naive.initial());
        for (int64_t step = 1; step <= kSteps; ++step) {
          for (int k = 0; k < kReplicas; ++k) x[k] = x[k] - kLr * naive.gradient(x[k], k, step);
        }
        std::vector<double> losses;
        for (const at::Tensor& candidate : x) {
          naive.named(candidate);                            // puts the candidate in place
          const Batch batch = mlp_task().batch(kSteps + 1);  // no rank trained on it
          const Model& model = naive.replica().model;
          losses.push_back(
              model.loss(model.forward(batch.input.to(at::kDouble)), batch.target).item<double>());
        }
        return losses[0] <= losses[1] ? x[0] : x[1];
      });
}

// The first and the last stage hold a tied parameter. Codes of flat ranges differ between the stages, but the
// copies must stay equal.
TEST(MeshTest, TiedParametersStayEqualWhateverTheCodec) {
  const Task task = gpt_task();
  on_mesh({2, 2, 1}, [&](Here& here, Store&) {
    const auto pipeline = pipeline_of(
        here, task, {"1f1b", 1, 2},
        [](const Part& part) {
          return std::make_unique<CompressedSgd>(part.factory, plain_sgd(), part.options, parse_codec("1bit"),
                                                 part.group, part.clock);
        },
        0, true, true);
    for (int64_t step = 1; step <= 3; ++step) one_step(*pipeline, here, task, step);
    pipeline->begin_step({4, kLr, false});
    pipeline->forward_backward(share_of(task.batch(4), here.place.replica, 2));
    int tied = 0;
    for (const NamedTensor& p : pipeline->replica().parameters) {
      if (p.name != "transformer.wte.weight") continue;
      ++tied;
      const at::Tensor own = p.tensor.detach().contiguous();
      at::Tensor first = own.clone();
      broadcast(*here.world, first.data_ptr(), first.numel(), DataType::kFp32, 0);
      require(at::equal(own, first), "the copies differ");
    }
    require(tied == 1, "the model has no such parameter");
    pipeline->update();
  });
}

TEST(MeshTest, AWishToStopReachesAllRanksAfterTheSameStep) {
  const Task task = mlp_task();
  on_mesh({2, 2, 1}, [&](Here& here, Store&) {
    const auto pipeline = pipeline_of(here, task, {"1f1b", 1, 2}, all_reduce(plain_sgd()));
    int64_t last = 0;
    for (int64_t step = 1; step <= 10 && last == 0; ++step) {
      if (one_step(*pipeline, here, task, step, here.rank == 3 && step >= 2).stop) last = step;
    }
    require(last == 4, fmt::format("stopped after step {}", last));
  });
}

// Servers.

std::vector<ServerKey> keys_of(const StageModel& stage) {
  std::vector<ServerKey> keys;
  for (size_t i = 0; i < stage.whole().parameters.size(); ++i) {
    const NamedTensor& p = stage.whole().parameters[i];
    keys.push_back({p.name, p.tensor.sizes().vec(), stage.holders(i).front()});
  }
  return keys;
}

struct Job {
  ParameterServerOptions options;
  ServerRendezvous rendezvous;
  Job(int workers, int servers, std::optional<int64_t> staleness) {
    options.server.workers = workers;
    options.server.staleness = staleness;
    options.server.optimizer.momentum = 0;
    if (!staleness) options.server.lambda.assign(workers, 1.0 / kReplicas);
    options.server.record_events = true;
    rendezvous.workers = workers;
    rendezvous.servers = servers;
    rendezvous.server_timeout = std::chrono::seconds(30);
  }
  Make make(Store& store, const Here& here) const {
    return [&](const Part& part) {
      ParameterServerOptions own = options;
      own.replica = part.options;
      own.keys = keys_of(part.stage);
      own.loads = here.place.replica == 0;
      return std::make_unique<ParameterServer>(part.factory, own, store, rendezvous, here.rank, &part.group,
                                               part.clock);
    };
  }
  ServeReport serve(int shard, Store& store) const {
    return serve_shard(store, rendezvous, shard, options.server, DataType::kFp64);
  }
};

TEST(MeshTest, SynchronousServersOfStagesEqualOneProcess) {
  const Task task = gpt_task();
  const Job job(4, 2, 0);
  OptimizerSpec spec;
  spec.momentum = 0;
  on_mesh(
      {2, 2, 1},
      [&](Here& here, Store& store) {
        const auto pipeline = pipeline_of(here, task, {"1f1b"}, job.make(store, here), 0.1, true);
        // Each replica clips its own gradient here, so the result differs from one process. This test only
        // checks that the run ends; the results below are without clipping.
        for (int64_t step = 1; step <= 2; ++step) one_step(*pipeline, here, task, step);
        pipeline->consensus();
        const StrategyState state = pipeline->state();
        if (here.rank != 0) return;
        Naive naive(task);
        at::Tensor x = naive.initial();
        for (int64_t step = 1; step <= 2; ++step) {
          at::Tensor sum = at::zeros_like(x);
          for (int k = 0; k < kReplicas; ++k) {
            const at::Tensor g = naive.gradient(x, k, step);
            const double norm = g.norm().item<double>();
            sum += norm > 0.1 ? g * (0.1 / (norm + 1e-6)) : g;
          }
          x = x - kLr * sum / kReplicas;
        }
        require_equal(task, state, naive.named(x), 1e-10, "synchronous servers");
      },
      2, [&](int shard, Store& store) { job.serve(shard, store); });
}

// Replays the events that the shards have recorded. Stage s of replica k reads and writes only the elements
// of shard s.
at::Tensor replayed(Naive& naive, const std::vector<std::vector<ServerTableEvent>>& logs,
                    const std::vector<at::Tensor>& of_shard) {
  at::Tensor x = naive.initial();
  using View = std::map<int, at::Tensor>;                  // by shard: x as it was read
  std::map<std::pair<int, int64_t>, View> seen;            // by replica and clock
  std::map<std::pair<int, int64_t>, at::Tensor> computed;  // gradients, by replica and clock
  std::vector<size_t> next(logs.size(), 0);
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t s = 0; s < logs.size(); ++s) {
      for (; next[s] < logs[s].size(); ++next[s], moved = true) {
        const ServerTableEvent& event = logs[s][next[s]];
        const std::pair<int, int64_t> at{event.worker / 2, event.clock};
        if (event.worker % 2 != static_cast<int>(s)) continue;  // this worker owns nothing on this shard
        if (event.action == ServerTableAction::kRead) seen[at][static_cast<int>(s)] = x.clone();
        if (event.action != ServerTableAction::kPush) continue;
        const View& view = seen[at];
        if (view.size() < logs.size()) break;  // another stage has not read yet
        if (computed.count(at) == 0) {
          at::Tensor local = at::zeros_like(x);
          for (const auto& [shard, values] : view) local += values * of_shard[shard];
          computed[at] = naive.gradient(local, at.first, at.second + 1);
        }
        x = x - kLr / kReplicas * computed[at] * of_shard[s];
      }
    }
  }
  for (size_t s = 0; s < logs.size(); ++s)
    require(next[s] == logs[s].size(), "the logs have no common order");
  return x;
}

// Downpour SGD, with the model sharded inside each group.
TEST(MeshTest, DownpourPushesToTheShardsOfItsStageAlone) {
  const Task task = mlp_task();
  const Job job(4, 2, std::nullopt);
  on_mesh(
      {2, 2, 1},
      [&](Here& here, Store& store) {
        std::vector<ServerKey> keys;
        const Make make = [&](const Part& part) {
          keys = keys_of(part.stage);
          return job.make(store, here)(part);
        };
        const auto pipeline = pipeline_of(here, task, {"1f1b"}, make, 0, true);
        for (int64_t step = 1; step <= kSteps; ++step) one_step(*pipeline, here, task, step);
        pipeline->consensus();
        const StrategyState state = pipeline->state();
        const auto print = pipeline->exchange().strategy_stats();
        if (here.rank != 0) return;
        for (int worker = 0; worker < 4; ++worker) {
          for (int shard = 0; shard < 2; ++shard)
            require(
                print.at(fmt::format("pushes_{}_{}", worker, shard)) == (worker % 2 == shard ? kSteps : 0),
                fmt::format("pushes of worker {} to shard {}", worker, shard));
        }
        Naive naive(task);
        std::vector<at::Tensor> of_shard;
        std::vector<std::vector<ServerTableEvent>> logs;
        for (int shard = 0; shard < 2; ++shard) {
          std::vector<at::Tensor> marks;
          for (const ServerKey& key : keys) marks.push_back(at::full(key.sizes, key.home == shard).flatten());
          of_shard.push_back(at::cat(marks).to(at::kDouble));
          logs.push_back(dynamic_cast<ParameterServer&>(pipeline->exchange()).events(shard));
        }
        require_equal(task, state, naive.named(replayed(naive, logs, of_shard)), 1e-10, "replayed");
      },
      2, [&](int shard, Store& store) { job.serve(shard, store); });
}

}  // namespace
}  // namespace starling
