#include "starling/run/strategies.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <string_view>

#include "starling/base/error.h"
#include "starling/parallel/admm.h"
#include "starling/parallel/central.h"
#include "starling/parallel/compressed_sgd.h"
#include "starling/parallel/delayed.h"
#include "starling/parallel/gossip.h"
#include "starling/parallel/hybrid.h"
#include "starling/parallel/local_sgd.h"
#include "starling/parallel/parallel_sgd.h"
#include "starling/parallel/parameter_server.h"
#include "starling/parallel/pipeline/layer_per_core.h"
#include "starling/parallel/pipeline/pipeline.h"
#include "starling/parallel/tensor_parallel.h"
#include "starling/parallel/zero.h"
#include "starling/plan/schedule_text.h"
#include "starling/report/timeline.h"
#include "starling/server/serve.h"
#include "starling/spec/mesh.h"
#include "starling/spec/on_failure.h"

namespace starling {
namespace {

bool channels_last(const Choices& choices) {
  const auto layout = choices.find("layout");
  return layout != choices.end() && layout->second == "channels-last";
}

// What an exchange trains, and among whom: whole models over all ranks, or a part of a model over the ranks that hold it.
struct Exchanged {
  const ModelFactory& factory;
  Group& group;
  ModelParts parts = {};
  std::vector<ServerKey> keys = {};  // of the whole model, where this is a part
  bool part = false;
};

FlatReplicaOptions flat_options(const StrategyParts& parts, const Exchanged& what) {
  const AllReduceOptions common = all_reduce_options(parts.spec, parts.choices);
  FlatReplicaOptions options;
  options.master = common.master;
  options.working = common.working;
  options.clip_norm = common.clip_norm;
  options.channels_last = common.channels_last;
  options.seed = common.seed;
  options.rank = parts.around.group.rank();
  options.parts = what.parts;
  if (what.part) options.channels_last = false;  // stages send each other plain tensors
  return options;
}

BuiltStrategy all_reduce(const StrategyParts& parts, const Exchanged& what, const UpdateRule& rule) {
  AllReduceOptions options = all_reduce_options(parts.spec, parts.choices);
  options.on_bucket = parts.on_bucket;
  options.parts = what.parts;
  if (what.part) options.channels_last = false;
  options.transactional = goes_on_after_loss(parts.spec);
  if (options.transactional && what.group.size() < parts.spec.train.ranks)
    options.global_batch = parts.spec.train.global_batch;
  BuiltStrategy result = built<AllReduce>(what.factory, rule, options, what.group, parts.around.clock);
  result.own_state = [strategy = static_cast<AllReduce*>(result.strategy.get())] {
    return strategy->own_state();
  };
  return result;
}

ServerOptions server_options(const RunSpec& spec) {
  ServerOptions options;
  const ExchangeSpec& exchange = spec.exchange;
  options.optimizer = spec.optimizer;
  options.workers = static_cast<int>(spec.train.ranks);
  options.backup = static_cast<int>(exchange.backup);
  options.fixed_order = exchange.reduction_order == "fixed";
  options.weight_by_staleness = exchange.staleness_weight;
  options.push_codec = parse_codec(exchange.codec);
  options.pull_codec = parse_weight_codec(exchange.pull_codec);
  if (exchange.name == "downpour" || exchange.staleness == "inf") {
    options.staleness.reset();
  } else {
    options.staleness = std::stoll(exchange.staleness);
  }
  options.redo_after_loss = goes_on_after_loss(spec) && options.synchronous() && options.backup == 0 &&
                            exchange.servers == 1 && options.push_codec.kind == CodecKind::kNone;
  // A push of every replica amounts to one synchronous step; each of a replica's ranks pushes its part.
  const MeshSpec mesh = parse_mesh(spec.train.mesh, spec.train.ranks);
  if (!options.synchronous() && mesh.replica < mesh.ranks())
    options.lambda.assign(options.workers, 1.0 / static_cast<double>(mesh.replica));
  return options;
}

BuiltStrategy parameter_server(const StrategyParts& parts, const Exchanged& what,
                               const FlatReplicaOptions& flat) {
  const Surroundings& around = parts.around;
  if (around.store == nullptr)
    throw ConfigError(
        "exchange.name",
        "the parameter server needs its server processes: start the run by -n, torchrun or srun");
  ParameterServerOptions options;
  options.server = server_options(parts.spec);
  options.replica = flat;
  options.n_push = parts.spec.exchange.push_every;
  options.n_fetch = parts.spec.exchange.fetch_every;
  options.keys = what.keys;
  options.loads = parts.axes.place().replica == 0;
  options.survives_losses = goes_on_after_loss(parts.spec);
  BuiltStrategy result = built<ParameterServer>(what.factory, options, *around.store, around.meeting,
                                                around.group.rank(), &what.group, around.clock);
  auto* strategy = static_cast<ParameterServer*>(result.strategy.get());
  result.lost = [strategy] { return strategy->lost(); };
  result.leave = [strategy] { strategy->leave(); };
  return result;
}

BuiltStrategy compressed(const StrategyParts& parts, const Exchanged& what, const UpdateRule& rule,
                         const FlatReplicaOptions& flat) {
  const CodecSpec codec = parse_codec(parts.spec.exchange.codec);
  return built<CompressedSgd>(what.factory, rule, flat, codec, what.group, parts.around.clock);
}

// "0 3 8", as choices.cc writes it.
std::vector<size_t> read_cut(const std::string& text) {
  std::vector<size_t> cut;
  std::istringstream words(text);
  for (size_t begin = 0; words >> begin;) cut.push_back(begin);
  return cut;
}

StepTimeline timeline_of(const Schedule& schedule, const std::vector<MeasuredAction>& measured) {
  StepTimeline timeline{schedule.name, schedule.ranks, schedule.chunks, schedule.micro_batches, {}};
  for (const MeasuredAction& a : measured)
    timeline.actions.push_back(
        {a.rank, a.action, static_cast<double>(a.begin_ns) * 1e-9, static_cast<double>(a.end_ns) * 1e-9});
  return timeline;
}

// BuiltStrategy::write_timeline of a pipeline.
template <typename S>
std::function<void(const std::string&)> timeline_writer(S* strategy, const Schedule& schedule) {
  return [strategy, schedule](const std::string& file) {
    const std::vector<MeasuredAction> measured = strategy->gather_timeline();
    if (!file.empty()) write_timeline(file, timeline_of(schedule, measured));
  };
}

BuiltStrategy make_exchange(const StrategyParts& parts, const Exchanged& what);

std::vector<ServerKey> keys_of(const StageModel& stage) {
  std::vector<ServerKey> keys;
  const std::vector<NamedTensor>& parameters = stage.whole().parameters;
  for (size_t i = 0; i < parameters.size(); ++i)
    keys.push_back({parameters[i].name, parameters[i].tensor.sizes().vec(), stage.holders(i).front()});
  return keys;
}

PipelineOptions pipeline_options(const StrategyParts& parts) {
  const AllReduceOptions common = all_reduce_options(parts.spec, parts.choices);
  PipelineOptions options;
  options.schedule = pipeline_schedule(parts.spec);
  options.master = common.master;
  options.working = common.working;
  options.clip_norm = common.clip_norm;
  options.seed = common.seed;
  options.activations = parts.spec.pipeline.activations;
  if (const auto cut = parts.choices.find("cut"); cut != parts.choices.end())
    options.cut = read_cut(cut->second);
  return options;
}

// A stage a core of one process.
BuiltStrategy layer_per_core(const StrategyParts& parts, const UpdateRule& rule) {
  const PipelineOptions options = pipeline_options(parts);
  auto strategy = std::make_unique<LayerPerCore>(parts.factory, rule, options, parts.around.clock);
  BuiltStrategy result;
  result.evaluated = &strategy->replica();
  result.fingerprint = [s = strategy.get()] {
    const auto pairs = s->fingerprint();
    return std::map<std::string, double>(pairs.begin(), pairs.end());
  };
  result.write_timeline = timeline_writer(strategy.get(), options.schedule);
  result.strategy = std::move(strategy);
  return result;
}

// Of a stage whose layers are divided too: who counts what in a whole replica.
ModelParts joined(const MeshGroups& axes, ModelParts stage, const ModelParts& slice) {
  if (slice.group == nullptr) return stage;
  stage.group = &axes.models();
  stage.counted_elsewhere.insert(stage.counted_elsewhere.end(), slice.counted_elsewhere.begin(),
                                 slice.counted_elsewhere.end());
  return stage;
}

// A stage a rank; what is exchanged between replicas is each stage by itself. slice: of the tensor axis, if there is one.
BuiltStrategy pipeline(const StrategyParts& parts, const ModelFactory& factory, const ModelParts& slice) {
  const MeshGroups& axes = parts.axes;
  PipelineOptions options = pipeline_options(parts);
  options.replica = axes.place().replica;
  options.ranks = axes.place().stage_ranks;
  options.share_tied = has_servers(parts.spec) || parts.spec.exchange.codec != "none";
  options.counting = {&axes.stages(), &axes.replicas()};
  auto strategy = std::make_unique<Pipeline>(factory, options, axes.stages(), parts.around.clock,
                                             [&](const ModelFactory& part, const StageModel& stage) {
                                               const ModelParts own = joined(axes, stage.parts(), slice);
                                               return make_exchange(
                                                   parts, {part, axes.replicas(), own, keys_of(stage), true});
                                             });
  BuiltStrategy result;
  result.evaluated = &strategy->replica();
  const bool exchanges = exchange_of(parts.spec) != "none";
  result.fingerprint = [s = strategy.get(), exchanges, replicas = axes.mesh().replica] {
    std::map<std::string, double> print;
    if (exchanges) print = s->exchange_fingerprint();
    for (const auto& [name, number] : s->fingerprint()) print[name] = number;
    print["replicas"] = static_cast<double>(replicas);
    return print;
  };
  result.write_timeline = timeline_writer(strategy.get(), options.schedule);
  result.strategy = std::move(strategy);
  return result;
}

BuiltStrategy zero(const StrategyParts& parts, const Exchanged& what, const UpdateRule& rule,
                   const FlatReplicaOptions& flat) {
  ZeroOptions options;
  options.stage = static_cast<int>(parts.spec.train.shard);
  options.replica = flat;
  options.bucket_bytes = all_reduce_options(parts.spec, parts.choices).bucket_bytes;
  options.memory = &count_tensor_memory();
  return built<Zero>(what.factory, rule, options, what.group, parts.around.clock);
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

BuiltStrategy make_exchange(const StrategyParts& parts, const Exchanged& what) {
  const ExchangeSpec& exchange = parts.spec.exchange;
  const UpdateRule rule = make_update_rule(parts.spec.optimizer);
  const FlatReplicaOptions flat = flat_options(parts, what);
  const ModelFactory& factory = what.factory;
  Group& group = what.group;
  const Clock& clock = parts.around.clock;
  const std::string& name = exchange.name;
  if (parts.spec.train.shard != Shard::kNone) return zero(parts, what, rule, flat);
  if (name == "all-reduce" && exchange.codec != "none") return compressed(parts, what, rule, flat);
  if (name == "all-reduce") return all_reduce(parts, what, rule);
  if (has_servers(parts.spec)) return parameter_server(parts, what, flat);
  if (name == "central")
    return built<Central>(factory, rule, flat, exchange.central == CentralMode::kDivided, group, clock);
  if (name == "local-sgd")
    return built<LocalSgd>(factory, rule, flat, exchange.every, group, clock, parse_codec(exchange.codec));
  if (name == "parallel-sgd") {
    const Combine combine = exchange.combine == "best" ? Combine::kBest : Combine::kAverage;
    return built<ParallelSgd>(factory, rule, flat, steps_of_a_round(parts), combine, group, clock);
  }
  if (name == "admm") {
    const AdmmOptions admm{exchange.every, exchange.rho, exchange.adaptive_rho};
    return built<Admm>(factory, rule, flat, admm, group, clock);
  }
  if (name == "gossip") return built<Gossip>(factory, rule, flat, graph_of(exchange.graph), group, clock);
  throw ConfigError("exchange.name", name + " is no exchange; `starling strategies` lists them");
}

// A replica of models that `factory` makes. slice: of the tensor axis, if there is one.
BuiltStrategy of_replica(const StrategyParts& parts, const ModelFactory& factory, const ModelParts& slice) {
  if (parts.axes.mesh().stage > 1) return pipeline(parts, factory, slice);
  return make_exchange(parts, {factory, parts.axes.replicas(), slice, {}, slice.group != nullptr});
}

BuiltStrategy tensor_parallel(const StrategyParts& parts) {
  const MeshGroups& axes = parts.axes;
  std::vector<Group*> counting = {&axes.tensors()};
  if (axes.mesh().stage == 1) counting.push_back(&axes.replicas());
  auto strategy = std::make_unique<TensorParallel>(
      parts.factory, axes.tensors(), counting, parts.around.clock,
      [&](const ModelFactory& part, const ModelParts& slice) { return of_replica(parts, part, slice); });
  BuiltStrategy result;
  result.evaluated = &strategy->evaluated();
  result.parameters = strategy->whole_parameters();
  result.fingerprint = [s = strategy.get()] { return s->fingerprint(); };
  result.write_timeline = strategy->exchange().write_timeline;
  result.strategy = std::move(strategy);
  return result;
}

BuiltStrategy hybrid(const StrategyParts& parts) {
  HybridOptions options;
  options.layers = parts.hybrid_layers;
  options.replica = flat_options(parts, {parts.factory, parts.around.group});
  return built<Hybrid>(parts.factory, make_update_rule(parts.spec.optimizer), options, parts.around.group,
                       parts.around.clock);
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

void check_codecs(const RunSpec& spec) {
  parse_codec(spec.exchange.codec);
  parse_weight_codec(spec.exchange.pull_codec);
}

bool is_pipeline(const RunSpec& spec) {
  return spec.train.threads_mode == ThreadsMode::kLayer ||
         parse_mesh(spec.train.mesh, spec.train.ranks).stage > 1;
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
  if (std::string_view(pipeline.schedule).starts_with(kFile))
    return read_schedule(pipeline.schedule.substr(kFile.size()));
  const bool layers = spec.train.threads_mode == ThreadsMode::kLayer;
  const int64_t ranks = layers ? spec.train.threads : parse_mesh(spec.train.mesh, spec.train.ranks).stage;
  const int chunks = pipeline.schedule == "interleaved" ? static_cast<int>(pipeline.chunks) : 1;
  return make_schedule(pipeline.schedule, static_cast<int>(ranks), chunks,
                       static_cast<int>(pipeline.micro_batches));
}

int serve(const RunSpec& spec, int shard, const Surroundings& around) {
  const DataType type = spec.train.precision == Precision::kFp64 ? DataType::kFp64 : DataType::kFp32;
  const ServeReport report = serve_shard(*around.store, around.meeting, shard, server_options(spec), type);
  for (const LostWorker& lost : report.lost)
    around.sink.emit(Message{Severity::kWarning, shard,
                             fmt::format("server {}: worker {} was lost ({}); the others went on", shard,
                                         lost.worker, lost.reason)});
  return 0;
}

BuiltStrategy make_strategy(const StrategyParts& parts) {
  if (parts.spec.train.threads_mode == ThreadsMode::kLayer)
    return layer_per_core(parts, make_update_rule(parts.spec.optimizer));
  if (parts.spec.train.hybrid != "none") return hybrid(parts);
  if (parts.axes.mesh().tensor > 1) return tensor_parallel(parts);
  return of_replica(parts, parts.factory, {});
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
      {"parameter-server",
       "server shards hold the weights; workers pull and push (--servers S --staleness 0|s|inf)",
       "staleness_<n>, max_staleness <= s, requests_<shard>, late_dropped"},
      {"downpour",
       "asynchronous parameter server, pushes and pulls apart (exchange.push_every, fetch_every); with "
       "--mesh replica=G,stage=S the model is split inside a group",
       "pushes_<worker>_<shard>: 0 where a rank owns nothing"},
      {"--codec NAME",
       "gradients (all-reduce, to a server) or deltas (local-sgd) travel as fp16, bf16, int8, 1bit, "
       "threshold, …",
       "message_bytes, compression, residual_norm; servers: push_message_bytes, push_compression"},
      {"--pull-codec NAME",
       "the weights that a server sends travel as fp16, bf16, int8, 1bit, lowrank (PCA) or prune",
       "pull_message_bytes, pull_compression"},
      {"--shard WHAT",
       "ZeRO 1, 2, 3: ranks divide optimizer states, gradients too, parameters too (docs/zero.md)",
       "held_bytes = formula_bytes, traffic_elements = 2 (stage 3: 3) |W| (p-1)/p"},
      {"--mesh stage=S",
       "pipeline: layers divided over ranks, micro-batches in flight (--schedule, --micro-batches); with "
       "replica=R several of them, any exchange between them",
       "bubble beside bubble_planned"},
      {"--mesh tensor=T",
       "the ranks of a replica divide its layers: attention by heads, columns and rows, vocabulary, "
       "channels; "
       "with replica=R every exchange but servers between replicas, no --codec (docs/tensor.md)",
       "layer_elements = 8 b s h (t-1)/t a transformer layer"},
      {"--hybrid auto|LAYERS",
       "fully connected layers model-parallel, the others data-parallel, over the same ranks "
       "(docs/tensor.md)",
       "model_parallel/<layer>, data_parallel_bytes = 2 (p-1)/p |W| of the others"},
      {"--threads-mode layer", "pipeline inside one process: a part of the layers a core",
       "bubble beside bubble_planned"},
  };
  return kEntries;
}

}  // namespace starling
