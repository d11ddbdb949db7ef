#include "starling/run/strategies.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <sstream>
#include <string_view>
#include <thread>

#include "starling/base/error.h"
#include "starling/codec/make_codec.h"
#include "starling/parallel/exchange_makers.h"
#include "starling/parallel/hybrid.h"
#include "starling/parallel/pipeline/layer_per_core.h"
#include "starling/parallel/pipeline/pipeline.h"
#include "starling/parallel/tensor_parallel.h"
#include "starling/plan/schedule_text.h"
#include "starling/run/loop/torch_rule.h"
#include "starling/run/tensor_plan_check.h"
#include "starling/server/serve.h"
#include "starling/server/service_settings.h"
#include "starling/spec/batch_share.h"
#include "starling/spec/mesh.h"
#include "starling/spec/on_failure.h"

namespace starling {
namespace {

bool channels_last(const Choices& choices) {
  const auto layout = choices.find("layout");
  return layout != choices.end() && layout->second == "channels-last";
}

// Returns the parts of an exchange that trains what `factory` makes over the ranks of `group`.
ExchangeParts parts_of(const StrategyParts& parts, const ModelFactory& factory, Group& group,
                       const ModelParts& shared, bool part) {
  FlatReplicaOptions replica = replica_options(parts.spec, parts.choices);
  replica.rank = parts.environment.world_rank();
  replica.parts = shared;
  replica.optimizer = parts.program.optimizer;
  if (part) replica.channels_last = false;  // stages send each other contiguous tensors
  const RunEnvironment& environment = parts.environment;
  ExchangeParts result{parts.spec, factory,          group, environment.process.clock, replica,
                       part,       parts.total_steps};
  result.servers = {environment.store, environment.rendezvous, environment.group.rank(),
                    parts.axes.place().replica == 0, parts.axes.team()};
  result.on_bucket = parts.on_bucket;
  result.held_out = parts.held_out;
  return result;
}

// Parses "0 3 8", the form that choices.cc writes.
std::vector<size_t> read_cut(const std::string& text) {
  std::vector<size_t> cut;
  std::istringstream words(text);
  for (size_t begin = 0; words >> begin;) cut.push_back(begin);
  return cut;
}

std::vector<ServerKey> keys_of(const StageModel& stage) {
  std::vector<ServerKey> keys;
  const std::vector<NamedTensor>& parameters = stage.whole().parameters;
  keys.reserve(parameters.size());
  for (size_t i = 0; i < parameters.size(); ++i)
    keys.push_back({parameters[i].name, parameters[i].tensor.sizes().vec(), stage.holders(i).front()});
  return keys;
}

PipelineOptions pipeline_options(const StrategyParts& parts) {
  const FlatReplicaOptions common = replica_options(parts.spec, parts.choices);
  PipelineOptions options;
  options.schedule = pipeline_schedule(parts.spec);
  options.master = common.master;
  options.working = common.working;
  options.clip_norm = common.clip_norm;
  options.seed = common.seed;
  const PipelineSpec& pipeline = parts.spec.pipeline;
  options.activations = {pipeline.activations,
                         {pipeline.calibration_steps, pipeline.recalibrate_every, pipeline.saturation_limit,
                          pipeline.percentile}};
  if (const auto cut = parts.choices.find("cut"); cut != parts.choices.end())
    options.cut = read_cut(cut->second);
  return options;
}

// Returns the parts of a stage whose layers are sharded too. They tell which rank counts which parameters of
// a replica.
ModelParts joined(const MeshGroups& axes, ModelParts stage, const ModelParts& slice) {
  if (slice.group == nullptr) return stage;
  stage.group = &axes.models();
  stage.slices = slice.slices;
  stage.sliced = slice.sliced;
  stage.counted_elsewhere.insert(stage.counted_elsewhere.end(), slice.counted_elsewhere.begin(),
                                 slice.counted_elsewhere.end());
  return stage;
}

// Makes a pipeline: each rank holds a stage, and the exchange runs between the replicas of each stage.
// `slice` is that of the tensor axis, if there is one.
std::unique_ptr<Strategy> pipeline(const StrategyParts& parts, const ModelFactory& factory,
                                   const ModelParts& slice) {
  const MeshGroups& axes = parts.axes;
  PipelineOptions options = pipeline_options(parts);
  options.replica = axes.place().replica;
  options.replicas = static_cast<int>(axes.mesh().replica);
  if (options.replicas > 1) options.same_stage = &axes.replicas();
  options.tells_exchange = exchange_of(parts.spec) != "none";
  options.share_tied = has_servers(parts.spec) || parts.spec.exchange.codec != "none";
  options.counting = {&axes.stages(), &axes.replicas()};
  return std::make_unique<Pipeline>(factory, options, axes.stages(), parts.environment.process.clock,
                                    [&](const ModelFactory& part, const StageModel& stage) {
                                      ExchangeParts own = parts_of(parts, part, axes.replicas(),
                                                                   joined(axes, stage.parts(), slice), true);
                                      own.keys = keys_of(stage);
                                      return make_exchange(own);
                                    });
}

// Makes the strategy of a replica of the model that `factory` makes. `slice` is that of the tensor axis, if
// there is one.
std::unique_ptr<Strategy> of_replica(const StrategyParts& parts, const ModelFactory& factory,
                                     const ModelParts& slice) {
  if (parts.axes.mesh().stage > 1) return pipeline(parts, factory, slice);
  return make_exchange(parts_of(parts, factory, parts.axes.replicas(), slice, slice.group != nullptr));
}

std::unique_ptr<Strategy> tensor_parallel(const StrategyParts& parts) {
  check_tensor_plan(parts);
  const MeshGroups& axes = parts.axes;
  std::vector<Group*> counting = {&axes.tensors()};
  if (axes.mesh().stage == 1) counting.push_back(&axes.replicas());
  return std::make_unique<TensorParallel>(
      parts.factory, axes.tensors(), counting, parts.environment.process.clock,
      [&](const ModelFactory& part, const ModelParts& slice) { return of_replica(parts, part, slice); },
      parts.spec.train.hash_every, parts.program.tensor_plan);
}

std::unique_ptr<Strategy> hybrid(const StrategyParts& parts) {
  HybridOptions options;
  options.layers = parts.hybrid_layers;
  options.replica = replica_options(parts.spec, parts.choices);
  options.replica.rank = parts.environment.world_rank();
  return std::make_unique<Hybrid>(parts.factory, make_update_rule(parts.spec.optimizer), options,
                                  parts.environment.group, parts.environment.process.clock);
}

}  // namespace

FlatReplicaOptions replica_options(const RunSpec& spec, const Choices& choices) {
  FlatReplicaOptions options;
  options.master = spec.train.precision == Precision::kFp64 ? at::kDouble : at::kFloat;
  options.working = spec.train.precision == Precision::kBf16 ? at::kBFloat16 : options.master;
  options.clip_norm = spec.optimizer.clip_norm;
  options.clip_value = spec.optimizer.clip_value;
  options.accumulate = spec.train.accumulate;
  options.channels_last = channels_last(choices);
  options.seed = spec.train.seed;
  if (spec.train.threads_mode == ThreadsMode::kHogwild) {
    options.hogwild.threads = static_cast<int>(spec.train.threads);
    options.hogwild.updates = spec.train.thread_updates;
    options.hogwild.sparse = spec.train.hogwild == HogwildUpdates::kSparse;
  }
  if (has_unequal_shares(spec)) options.global_batch = spec.train.global_batch;
  return options;
}

void check_codecs(const RunSpec& spec) {
  const CodecSpec codecs[] = {
      parse_codec(spec.exchange.codec, "--codec", spec.extensions.get()),
      parse_weight_codec(spec.exchange.pull_codec, "--pull-codec", spec.extensions.get())};
  // Only the function that makes a codec knows the settings that have no field in CodecSpec.
  for (const CodecSpec& codec : codecs) {
    if (codec.added != nullptr || !codec.settings.empty())
      make_codec(codec, {TensorShape{.rows = 1, .cols = 1}});
  }
}

std::string exchange_of(const RunSpec& spec) {
  const MeshSpec mesh = parse_mesh(spec.train.mesh, spec.train.ranks);
  const bool one_replica =
      spec.train.threads_mode == ThreadsMode::kLayer || (mesh.replica == 1 && mesh.ranks() > 1);
  return one_replica && !has_servers(spec) ? "none" : spec.exchange.name;
}

Schedule pipeline_schedule(const RunSpec& spec) {
  constexpr std::string_view kFile = "file:";
  const PipelineSpec& pipeline = spec.pipeline;
  if (std::string_view(pipeline.schedule).starts_with(kFile)) {
    const Schedule schedule = read_schedule(pipeline.schedule.substr(kFile.size()));
    if (schedule.micro_batches != pipeline.micro_batches)
      throw ConfigError("pipeline.micro_batches",
                        fmt::format("the schedule {} has {} micro-batches, not {}: give --micro-batches {}",
                                    pipeline.schedule.substr(kFile.size()), schedule.micro_batches,
                                    pipeline.micro_batches, schedule.micro_batches));
    return schedule;
  }
  const bool layers = spec.train.threads_mode == ThreadsMode::kLayer;
  const int64_t ranks = layers ? spec.train.threads : parse_mesh(spec.train.mesh, spec.train.ranks).stage;
  const int chunks = pipeline.schedule == "interleaved" ? static_cast<int>(pipeline.chunks) : 1;
  return make_schedule(pipeline.schedule, static_cast<int>(ranks), chunks,
                       static_cast<int>(pipeline.micro_batches));
}

namespace {

// The services of one server process.
class Services {
 public:
  Services(const RunSpec& spec, int shard, const RunEnvironment& environment)
      : spec_(spec), shard_(shard), environment_(environment) {}

  // Serves until no service is open.
  void run() {
    announce_server(*environment_.store, rendezvous(0), shard_);
    const std::optional<ServiceSettings> first = await_service(*environment_.store, rendezvous(0));
    open(first);
    if (first && first->more) open_further();
    threads_.clear();  // joins
    if (fault_) std::rethrow_exception(fault_);
  }

 private:
  static constexpr std::chrono::milliseconds kLook{50};

  ServerRendezvous rendezvous(int service) const {
    return rendezvous_of_service(environment_.rendezvous, service);
  }

  // Opens services as the workers announce them, until none is open.
  void open_further() {
    std::unique_lock lock(mutex_);
    while (open_ > 0) {
      ended_.wait_for(lock, kLook);
      if (open_ == 0) return;
      lock.unlock();
      const auto next = announced_service(*environment_.store, rendezvous(static_cast<int>(threads_.size())));
      if (next) open(next);
      lock.lock();
    }
  }

  void open(const std::optional<ServiceSettings>& settings) {
    {
      const std::lock_guard lock(mutex_);
      ++open_;
    }
    const ServerRendezvous place = rendezvous(static_cast<int>(threads_.size()));
    threads_.emplace_back([this, settings, place] {
      std::exception_ptr fault;
      try {
        serve_one(place, settings);
      } catch (...) {  // the thread that waits for all services throws it
        fault = std::current_exception();
      }
      const std::lock_guard lock(mutex_);
      if (fault) fault_ = fault;
      --open_;
      ended_.notify_all();
    });
  }

  void serve_one(const ServerRendezvous& place, const std::optional<ServiceSettings>& settings) {
    ServerOptions options = server_options(spec_);
    DataType type = spec_.train.precision == Precision::kFp64 ? DataType::kFp64 : DataType::kFp32;
    if (settings) {
      type = settings->type;
      options.optimizer = settings->optimizer;
      if (!settings->torch.name.empty()) {
        TorchSettings torch = settings->torch;
        torch.group_of = settings->groups_of_shard.at(static_cast<size_t>(shard_));
        options.make_rule = [torch, type] { return make_torch_rule(torch, type); };
      }
    }
    const ServeReport report = serve_shard(*environment_.store, place, shard_, options, type);
    const std::lock_guard lock(mutex_);
    for (const LostWorker& lost : report.lost)
      environment_.process.sink.emit(
          Message{Severity::kWarning, shard_,
                  fmt::format("server {}: worker {} was lost ({}); the other workers continue", shard_,
                              lost.worker, lost.reason)});
  }

  const RunSpec& spec_;
  const int shard_;
  const RunEnvironment& environment_;
  std::mutex mutex_;
  std::condition_variable ended_;
  int open_ = 0;              // guarded by mutex_
  std::exception_ptr fault_;  // guarded by mutex_
  std::vector<std::jthread> threads_;
};

}  // namespace

int serve(const RunSpec& spec, int shard, const RunEnvironment& environment) {
  Services(spec, shard, environment).run();
  return 0;
}

std::unique_ptr<Strategy> make_strategy(const StrategyParts& parts) {
  if (parts.spec.train.threads_mode == ThreadsMode::kLayer) {
    return std::make_unique<LayerPerCore>(parts.factory, make_update_rule(parts.spec.optimizer),
                                          pipeline_options(parts), parts.environment.process.clock);
  }
  if (parts.spec.train.hybrid != "none") return hybrid(parts);
  if (parts.axes.mesh().tensor > 1) return tensor_parallel(parts);
  return of_replica(parts, parts.factory, {});
}

}  // namespace starling
