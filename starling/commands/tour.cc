#include "starling/commands/tour.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "starling/base/error.h"
#include "starling/spec/run_text.h"

namespace starling {
namespace {

struct TourPicture {
  const char* title;
  const char* caption;
  std::vector<const char*> runs;  // in the form of --runs
};

std::vector<TourPicture> replica_pictures() {
  return {
      {"All-reduce and central storage",
       "Each rank draws its part of the global batch. With all-reduce, the ranks average their gradients and "
       "every rank makes the same update, so that the replicas stay identical. Central storage keeps one "
       "copy of the parameters for all ranks.",
       {"all-reduce", "central"}},
      {"A parameter server: how stale may a read be?",
       "A server updates the parameters for four workers. On every worker, one step in ten takes four times "
       "as long. With staleness 0, all workers wait for the slowest. With staleness 3, a worker may be three "
       "clocks ahead of the slowest. With staleness inf, no worker waits.",
       {"parameter-server:staleness=0:emulate=jitter=4x@10%",
        "parameter-server:staleness=3:emulate=jitter=4x@10%",
        "parameter-server:staleness=inf:optimizer.momentum=0.5:lr=0.1:emulate=jitter=4x@10%"}},
      {"Parallel SGD, ADMM and local SGD on unequal data",
       "Each rank has digits of its own classes only. Parallel SGD shuffles the samples between the ranks "
       "first. ADMM moves no samples and draws the models together by multipliers. Local SGD averages the "
       "models, here every 64 steps.",
       {"parallel-sgd:every=8:partition=by-label",
        "admm:every=1:rho=4:adaptive_rho=false:optimizer.momentum=0:lr=0.1:lr-schedule=constant:partition=by-"
        "label",
        "local-sgd:every=64:partition=by-label"}},
      {"Downpour SGD, 2 x 2: two model replicas, two server shards",
       "Each of the two replicas trains on its own samples, and two ranks share its layers. The parameters "
       "are divided among two server shards, which update independently. A rank pushes to and pulls from "
       "only the shard that owns its layers, here every second step. No replica waits for the other.",
       {"downpour:servers=2:mesh=replica=2,stage=2:push_every=2:fetch_every=2:optimizer.momentum=0:lr=0.2"}},
      {"Decentralized SGD: gossip",
       "Each rank mixes its model with those of its neighbors, on a ring or on an exponential graph. There "
       "is no server and no all-reduce.",
       {"gossip:graph=ring", "gossip:graph=exponential"}},
  };
}

std::vector<TourPicture> model_pictures() {
  return {
      {"Pipelines: layers on different ranks",
       "The layers are divided among two ranks. With the naive schedule, one rank waits while the other "
       "computes. GPipe and 1F1B keep both ranks busy with micro-batches.",
       {"mesh=stage=2:schedule=naive:n=2", "mesh=stage=2:schedule=gpipe:n=2",
        "mesh=stage=2:schedule=1f1b:n=2"}},
      {"ZeRO: sharded optimizer state, gradients and parameters",
       "The replicas shard the optimizer state, then also the gradients, then also the parameters. Each step "
       "makes the same update as all-reduce.",
       {"shard=optimizer", "shard=gradients", "shard=parameters"}},
      {"Codecs: 16, 8 and 1 bit",
       "Ranks send gradients as 16-bit floats, as 8-bit integers, or as signs. 1-bit SGD adds the residual "
       "of a gradient to the next one. Without this error feedback (feedback=off) the residual is lost.",
       {"codec=fp16", "codec=int8", "codec=1bit", "codec=1bit:feedback=off"}},
  };
}

std::vector<TourPicture> tour_pictures() {
  std::vector<TourPicture> pictures = replica_pictures();
  for (TourPicture& picture : model_pictures()) pictures.push_back(std::move(picture));
  return pictures;
}

void unless_given(Config& config, const char* key, const std::string& value) {
  if (!is_given(config.origins, key)) apply_set(config, std::string(key) + "=" + value);
}

Config with_defaults(Config base, bool quick) {
  unless_given(base, "train.ranks", "4");
  unless_given(base, "train.global_batch", "64");
  unless_given(base, "train.seed", "1");
  unless_given(base, "pipeline.micro_batches", "8");
  unless_given(base, "data.source", "digits");
  unless_given(base, "optimizer.lr", "0.02");
  if (quick) {
    unless_given(base, "model.name", "mlp");
    unless_given(base, "model.widths", "[784, 32, 32, 10]");
    unless_given(base, "data.samples", "512");
    unless_given(base, "data.test_samples", "64");
    return base;
  }
  unless_given(base, "model.name", "lenet5");
  unless_given(base, "data.samples", "8192");
  unless_given(base, "data.test_samples", "1024");
  unless_given(base, "schedule.name", "cosine");
  unless_given(base, "schedule.warmup_steps", "32");
  return base;
}

}  // namespace

ComparisonPlan make_tour(Config base, bool quick, const std::string& only) {
  ComparisonPlan plan;
  plan.base = with_defaults(std::move(base), quick);
  plan.title = "A tour of distributed training";
  plan.lead =
      "Each section shows one idea of distributed training. All runs are real processes on this machine. "
      "They train the same model from the same weights on the same samples.";
  plan.budget.samples = quick ? 1024 : 24576;
  plan.measure_exchange = !quick && only.empty();
  plan.target.accuracy = quick ? 0.3 : 0.9;
  plan.runs.push_back({"one rank", one_rank(plan.base)});
  for (const TourPicture& shown : tour_pictures()) {
    if (std::string_view(shown.title).find(only) == std::string_view::npos) continue;
    Picture picture{shown.title, shown.caption, {0}};
    for (const char* text : shown.runs) {
      picture.runs.push_back(plan.runs.size());
      plan.runs.push_back({text, config_of_run(plan.base, {}, text)});
    }
    plan.pictures.push_back(std::move(picture));
  }
  if (plan.pictures.empty())
    throw ConfigError("--only", "no section of the tour has \"" + only + "\" in its title");
  complete_plan(plan);
  return plan;
}

int tour_command(const Config& base, bool quick, const std::string& only, const CommandOptions& options) {
  return carry_out(make_tour(base, quick, only), options);
}

}  // namespace starling
