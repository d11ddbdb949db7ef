#include "starling/run/training.h"

#include <torch/torch.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string_view>

#include "starling/data/partition.h"
#include "starling/data/served_key.h"
#include "starling/data/served_loader.h"
#include "starling/nn/direct_linear.h"
#include "starling/nn/state.h"
#include "starling/parallel/delayed.h"
#include "starling/parallel/sample_shuffle.h"
#include "starling/run/hybrid_choice.h"
#include "starling/run/run_folder.h"
#include "starling/run/strategies.h"
#include "starling/spec/emulation.h"
#include "starling/train/trainer.h"

namespace starling {

LoaderOptions loader_options(const RunSpec& spec, int rank, int ranks, int64_t first_step) {
  LoaderOptions options;
  options.seed = spec.train.seed;
  options.order = spec.data.order;
  options.global_batch = spec.train.global_batch;
  options.rank = rank;
  options.ranks = ranks;
  options.workers = spec.data.workers;
  options.prefetch = spec.data.prefetch;
  options.first_step = first_step;
  return options;
}

ModelHooks model_hooks(Group* group) {
  ModelHooks hooks;
  if (group == nullptr) return hooks;
  hooks.all_reduce_sum = [group](at::Tensor& sum) {
    const at::Tensor whole = sum.contiguous();
    const DataType type = whole.scalar_type() == at::kDouble ? DataType::kFp64 : DataType::kFp32;
    group->all_reduce(whole.data_ptr(), whole.numel(), type, ReduceOp::kSum);
    if (!whole.is_same(sum)) sum.copy_(whole);
  };
  return hooks;
}

SyncedModelFactory zoo_factory(const RunSpec& spec, const SourceInfo& data) {
  const ModelShape shape{data.input_shape, data.classes, data.text};
  zoo_model(spec.model, shape);  // refuses what does not fit now, not on the first rank that makes one
  return [model = spec.model, shape](const ModelHooks& hooks) -> ModelFactory {
    ModelFactory make = zoo_model(model, shape, hooks);
    if (model.init.empty()) return make;
    return [make, init = model.init] {
      Model made = make();
      load_model(*made.module, init);
      return made;
    };
  };
}

namespace {

Batch first_samples(const Source& source, int64_t count) {
  std::vector<int64_t> indices(std::min(count, source.size()));
  std::iota(indices.begin(), indices.end(), int64_t{0});
  return source.read(indices, 0);
}

RunStarted started(const RunSpec& spec, const TrainLength& length, const Choices& choices,
                   const Surroundings& around, int64_t parameters) {
  RunStarted event;
  event.run_dir = around.run_dir;
  event.model = spec.model.name;
  event.data = spec.data.source;
  event.ranks = around.group.size();
  event.threads = spec.train.threads;
  event.global_batch = spec.train.global_batch;
  event.total_steps = length.total_steps;
  event.first_step = length.first_step;
  event.params = parameters;
  event.choices = choices;
  return event;
}

}  // namespace

namespace {

constexpr std::string_view kServed = "served:";

// The samples that this rank trains on, and how they came to it.
struct OwnSamples {
  std::shared_ptr<const Source> source;
  bool partitioned = false;  // they are this rank's alone
  SampleShuffle shuffle;
};

std::string partition_kind(const RunSpec& spec) {
  if (spec.data.partition != "auto") return spec.data.partition;
  return spec.exchange.name == "parallel-sgd" || spec.exchange.name == "admm" ? "iid" : "none";
}

// Parallel SGD moves the samples between the replicas until each part stands for the whole; others keep what they have. All
// ranks of a replica have the same samples.
OwnSamples own_samples(const RunSpec& spec, const DataSets& data, const MeshGroups& axes,
                       const Clock& clock) {
  OwnSamples own;
  own.source = data.train;
  const std::string kind = partition_kind(spec);
  Group& group = axes.replicas();
  if (kind == "none" || group.size() == 1) return own;
  const std::vector<int64_t> labels =
      kind == "iid" ? std::vector<int64_t>(data.train->size()) : labels_of(*data.train);
  const auto parts = partition_samples(labels, group.size(), kind, spec.train.seed);
  own.source = subset_of(data.train, parts.at(group.rank()));
  own.partitioned = true;
  if (spec.exchange.name == "parallel-sgd") {
    own.shuffle = shuffle_samples(group, clock, *own.source, spec.train.seed);
    own.source = own.shuffle.samples;
  }
  return own;
}

std::map<std::string, double> with_shuffle(std::map<std::string, double> print, const OwnSamples& own,
                                           Group& group, double run_s) {
  if (!own.shuffle.samples) return print;
  double sums[2] = {static_cast<double>(own.shuffle.moved), static_cast<double>(own.shuffle.bytes)};
  group.all_reduce(sums, 2, DataType::kFp64, ReduceOp::kSum);
  print["samples_moved"] = sums[0];
  print["shuffle_bytes"] = sums[1];
  print["shuffle_s"] = own.shuffle.seconds;
  print["shuffle_share"] = own.shuffle.seconds / (own.shuffle.seconds + run_s);
  return print;
}

// The ranks take their steps at different times, and none waits for all others.
bool is_asynchronous(const ExchangeSpec& exchange) {
  return exchange.name == "downpour" || (exchange.name == "parameter-server" && exchange.staleness != "0");
}

// Such ranks ask a data server, where there is one, for the next batch of the epoch (data/served_loader.h).
std::unique_ptr<Loader> leased_loader(const RunSpec& spec, const OwnSamples& own, Group& group,
                                      int64_t first_step) {
  const ServedPlace place = parse_served(spec.data.source.substr(kServed.size()));
  std::random_device random;
  uint64_t job = (uint64_t{random()} << 32) ^ random();
  if (group.size() > 1) group.broadcast(&job, 1, DataType::kInt64, 0);
  auto tickets =
      std::make_unique<TicketStream>(place.address, served_identity(place), job, first_step * group.size());
  return make_leased_loader(own.source, loader_options(spec, group.rank(), group.size(), first_step),
                            std::move(tickets));
}

std::unique_ptr<Loader> loader_of(const RunSpec& spec, const OwnSamples& own, Group& group,
                                  int64_t first_step) {
  const bool served = std::string_view(spec.data.source).starts_with(kServed);
  const bool all_replicas =
      group.size() == spec.train.ranks;  // ranks that share a replica read the same samples
  if (served && all_replicas && !own.partitioned && is_asynchronous(spec.exchange))
    return leased_loader(spec, own, group, first_step);
  if (!own.partitioned)
    return make_loader(own.source, loader_options(spec, group.rank(), group.size(), first_step));
  LoaderOptions options = loader_options(spec, 0, 1, first_step);
  options.global_batch = spec.train.global_batch / group.size();
  return make_loader(own.source, options);
}

// Collective. What the ranks of a pipeline did in the last step, for people: timeline.json in the run folder.
void keep_timeline(const BuiltStrategy& built, const RunResult& result, const Surroundings& around) {
  if (built.write_timeline && result.steps > 0)
    built.write_timeline(around.run_dir.empty() ? "" : around.run_dir + "/timeline.json");
}

}  // namespace

std::vector<std::string> hybrid_layers_of(const RunSpec& spec, const SyncedModelFactory& factory,
                                          const Source& data, const Surroundings& around) {
  if (spec.train.hybrid == "none") return {};
  const HybridChoice choice = choose_hybrid(spec, factory(ModelHooks{}), data.info());
  around.sink.emit(Message{Severity::kInfo, around.group.rank(), "hybrid: " + choice.why});
  return choice.layers;
}

RunResult run_training(const RunSpec& spec, const SyncedModelFactory& factory, const DataSets& data,
                       const Surroundings& around) {
  Group& group = around.group;
  const int64_t share = spec.train.global_batch / group.size();
  RunFolder folder(spec, around);  // finds the checkpoint to resume from, if any
  const std::vector<std::string> hybrid = hybrid_layers_of(spec, factory, *data.train, around);
  const DirectLinear direct;
  const Choices choices = make_choices(spec, factory(ModelHooks{}), first_samples(*data.train, share),
                                       folder.earlier_choices(), group);
  apply_choices(choices);

  const MeshGroups axes(spec, around);
  std::unique_ptr<Group> norm_group;
  if (spec.model.batch_norm == BatchNorm::kSync && axes.mesh().replica > 1)
    norm_group = axes.make_replica_group("batch-norm");
  const OwnSamples own = own_samples(spec, data, axes, around.clock);
  TrainLength length = train_length(spec, data.train->size() / spec.train.global_batch);
  length.first_step = folder.first_step();
  const ModelFactory model = factory(model_hooks(norm_group.get()));
  const BuiltStrategy built =
      make_strategy({spec, choices, model, length.total_steps, around, axes, {}, hybrid});
  folder.restore(*built.strategy);
  const Emulation emulation = parse_emulation(spec.train.emulate);
  Delayed delayed(*built.strategy, emulation, group.rank(), spec.train.seed, around.clock);
  Strategy& strategy = emulation.any() ? static_cast<Strategy&>(delayed) : *built.strategy;

  const auto loader = loader_of(spec, own, axes.replicas(), folder.first_step());
  const int64_t parameters = built.parameters > 0 ? built.parameters : parameter_count(*built.evaluated);
  around.sink.emit(started(spec, length, choices, around, parameters));
  const Nanoseconds begin = around.clock.now();
  TrainParts parts{
      strategy, *built.evaluated, *loader, data.test.get(), group, around.sink, around.clock, around.stop, {},
      {}};
  parts.evaluators = &axes.evaluators();
  parts.save_checkpoint = [&](int64_t step) {
    folder.save_checkpoint(strategy, choices, step, length.steps_per_epoch, length.total_steps);
  };
  parts.fingerprint = [&] {
    auto print =
        with_shuffle(built.fingerprint(), own, axes.replicas(), to_seconds(around.clock.now() - begin));
    if (emulation.any()) print.merge(delayed.times(group));
    return print;
  };
  RunResult result = train(spec, length, parts);
  result.exchange = exchange_of(spec);
  result.params = parameters;
  strategy.consensus();
  folder.finish(strategy);
  keep_timeline(built, result, around);
  around.sink.emit(result);
  around.sink.flush();
  return result;
}

}  // namespace starling
