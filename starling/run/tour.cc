#include "starling/run/tour.h"

#include <string>
#include <string_view>
#include <vector>

#include "starling/base/error.h"
#include "starling/spec/run_text.h"

namespace starling {
namespace {

struct TourPicture {
  const char* title;
  const char* caption;
  std::vector<const char*> runs;  // as --runs says them
};

std::vector<TourPicture> tour_pictures() {
  return {
      {"Four computers and a database: all-reduce",
       "Seed “SGD with all-reduce against a parameter server”, figure 2. Each computer draws its part of the "
       "minibatch, "
       "the gradients are averaged over all of them, and each makes the same update, so that the replicas "
       "stay "
       "identical. Central storage keeps one copy for all (seed “Parallelism of model training”).",
       {"all-reduce", "central"}},
      {"A server and four workers: how stale may a read be?",
       "Seeds “All-reduce against a parameter server” and Petuum's “Introduction to distributed deep "
       "learning "
       "systems”. One step in ten takes four times as long on every computer, the stragglers of the second "
       "one. With "
       "staleness 0 all wait for the slowest, with 3 a worker may run ahead by three clocks, with inf nobody "
       "waits.",
       {"parameter-server:staleness=0:emulate=jitter=4x@10%",
        "parameter-server:staleness=3:emulate=jitter=4x@10%",
        "parameter-server:staleness=inf:optimizer.momentum=0.5:lr=0.1:emulate=jitter=4x@10%"}},
      {"Parallel SGD, ADMM, and averaging too late, on unequal data",
       "Seed “Parallel and distributed deep learning” (Hedge and Usmani), 6.1. Every computer has digits of "
       "its own "
       "kinds only. Parallel SGD shuffles the samples between them first; ADMM moves none and draws the "
       "models "
       "together by multipliers; averaging seldom, without either, finds the mean of different minima.",
       {"parallel-sgd:every=8:partition=by-label",
        "admm:every=1:rho=4:adaptive_rho=false:optimizer.momentum=0:lr=0.1:lr-schedule=constant:partition="
        "by-"
        "label",
        "local-sgd:every=64:partition=by-label"}},
      {"Downpour SGD, 2 x 2: two groups of computers, two servers",
       "The same seed, 6.2.1. Each of the two groups trains a model of its own on samples of its own, and "
       "the "
       "model is divided over the group's two computers. The parameters are divided over two server shards, "
       "which update independently; a computer pushes to and pulls from only the shard that owns its part, "
       "here every second step, and no group waits for the other.",
       {"downpour:servers=2:mesh=replica=2,stage=2:push_every=2:fetch_every=2:optimizer.momentum=0:lr=0.2"}},
      {"Nobody in the middle: gossip",
       "Seed “Parallelism of model training”. Each computer mixes its model with those of its neighbours, on "
       "a ring "
       "or on an exponential graph; there is no server and no all-reduce.",
       {"gossip:graph=ring", "gossip:graph=exponential"}},
      {"A layer a computer: pipelines",
       "The same seed. The layers are divided over two computers. In naive model parallelism one waits while "
       "the "
       "other works; GPipe and 1F1B keep both busy with micro-batches.",
       {"mesh=stage=2:schedule=naive:n=2", "mesh=stage=2:schedule=gpipe:n=2",
        "mesh=stage=2:schedule=1f1b:n=2"}},
      {"ZeRO: replicas that divide what they hold",
       "The same seed. Optimizer states, gradients too, parameters too are divided between the replicas; "
       "each step "
       "is the same as all-reduce's.",
       {"shard=optimizer", "shard=gradients", "shard=parameters"}},
      {"Fewer bytes: 16, 8 and 1 bit",
       "Seed “FireCaffe”, its last part. Gradients travel as 16-bit floats, 8-bit integers, or their signs; "
       "what 1-bit "
       "SGD leaves out is added to the next gradient, and without that (feedback=off) it is lost.",
       {"codec=fp16", "codec=int8", "codec=1bit", "codec=1bit:feedback=off"}},
  };
}

void unless_given(Config& config, const char* key, const std::string& value) {
  if (config.origins.find(key) == config.origins.end()) apply_set(config, std::string(key) + "=" + value);
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
      "Every picture of the documents that Starling began with, as it ran on this machine: real processes, "
      "the same "
      "model from the same weights, the same samples. All of them share these cores, so more ranks are not "
      "faster "
      "here; what differs is what they compute, send and wait for.";
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
    throw ConfigError("--only", "\"" + only + "\" is in the title of no picture of the tour");
  complete_plan(plan);
  return plan;
}

int tour_command(const Config& base, bool quick, const std::string& only, const CommandOptions& options) {
  return carry_out(make_tour(base, quick, only), options);
}

}  // namespace starling
