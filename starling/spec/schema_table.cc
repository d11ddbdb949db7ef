#include <array>

#include "starling/spec/schema.h"

namespace starling {
namespace {

template <class T, class Group>
T field_type(T Group::*);

// The member that the field `F` of the group `G` of a RunSpec is reached by.
template <auto G, auto F>
constexpr AnyMember at() {
  using T = decltype(field_type(F));
  if constexpr (std::is_enum_v<T>) {
    return EnumMember{[](const RunSpec& spec) { return static_cast<size_t>(spec.*G.*F); },
                      [](RunSpec& spec, size_t index) { spec.*G.*F = static_cast<T>(index); }};
  } else {
    return Member<T>{[](const RunSpec& spec) -> const T& { return spec.*G.*F; },
                     [](RunSpec& spec) -> T& { return spec.*G.*F; }};
  }
}

constexpr auto kModel = &RunSpec::model;
constexpr auto kData = &RunSpec::data;
constexpr auto kOptimizer = &RunSpec::optimizer;
constexpr auto kSchedule = &RunSpec::schedule;
constexpr auto kTrain = &RunSpec::train;
constexpr auto kExchange = &RunSpec::exchange;
constexpr auto kPipeline = &RunSpec::pipeline;
constexpr auto kRun = &RunSpec::run;
constexpr auto kCheckpoint = &RunSpec::checkpoint;
constexpr auto kComm = &RunSpec::comm;
constexpr auto kLaunch = &RunSpec::launch;
constexpr auto kVerify = &RunSpec::verify;

constexpr Range at_least(double min) {
  return {.min = min};
}
constexpr Range above(double min) {
  return {.min = min, .min_open = true};
}
constexpr Range within(double min, double max) {
  return {.min = min, .max = max};
}
constexpr Range below(double min, double max) {
  return {.min = min, .max = max, .max_open = true};
}

// clang-format off
constexpr auto kTable = std::to_array<SchemaEntry>({
  {.key = "model.name", .member = at<kModel, &ModelSpec::name>(),
   .doc = "The network to train; `starling zoo ls` describes each.",
   .allowed = "mlp lenet5 resnet18 resnet34 resnet50 alexnet nin googlenet vgg19 gpt", .flags = "--model", .placeholder = "NAME"},
  {.key = "model.widths", .member = at<kModel, &ModelSpec::widths>(),
   .doc = "mlp: the width of each layer, inputs first, classes last.", .range = at_least(1)},
  {.key = "model.stem", .member = at<kModel, &ModelSpec::stem>(),
   .doc = "resnets: first layers for large (imagenet) or small (cifar) pictures; auto decides by the data's size.",
   .allowed = "auto imagenet cifar"},
  {.key = "model.classes", .member = at<kModel, &ModelSpec::classes>(),
   .doc = "Outputs of a classifier; 0 = as many as the data has.", .range = at_least(0)},
  {.key = "model.layers", .member = at<kModel, &ModelSpec::layers>(),
   .doc = "gpt: number of transformer blocks.", .range = at_least(1)},
  {.key = "model.width", .member = at<kModel, &ModelSpec::width>(),
   .doc = "gpt: width of the residual stream, a multiple of model.heads.", .range = at_least(1)},
  {.key = "model.heads", .member = at<kModel, &ModelSpec::heads>(),
   .doc = "gpt: attention heads of a block.", .range = at_least(1)},
  {.key = "model.tokens", .member = at<kModel, &ModelSpec::tokens>(),
   .doc = "gpt: length of the context, and of a text sample.", .unit = "tokens", .range = at_least(1)},
  {.key = "model.vocabulary", .member = at<kModel, &ModelSpec::vocabulary>(),
   .doc = "gpt: number of distinct tokens; 0 = as many as the data has.", .range = at_least(0)},
  {.key = "model.dropout", .member = at<kModel, &ModelSpec::dropout>(),
   .doc = "gpt, alexnet, nin, googlenet, vgg19: probability of dropping an activation.", .range = below(0, 1)},
  {.key = "model.batch_norm", .member = at<kModel, &ModelSpec::batch_norm>(),
   .doc = "Batch norm over the samples of one rank (local) or of all ranks (sync).",
   .allowed = words_of(BatchNorm{})},
  {.key = "model.conv", .member = at<kModel, &ModelSpec::conv>(),
   .doc = "Convolutions by libtorch's choice of algorithm (auto), or as im2col and a matrix product.",
   .allowed = words_of(ConvAlgorithm{}), .flags = "--conv", .placeholder = "ALGORITHM"},
  {.key = "model.init", .member = at<kModel, &ModelSpec::init>(),
   .doc = "Weights to start from, by parameter name; empty = random from train.seed.",
   .flags = "--init", .placeholder = "FILE.safetensors"},

  {.key = "data.source", .member = at<kData, &DataSpec::source>(),
   .doc = "What to train on: idx:DIR, cifar-bin:DIR, images:PATH, text:FILE, served:HOST:PORT[,key=FILE], or generated: digits, grammar.",
   .flags = "--data", .placeholder = "SOURCE"},
  {.key = "data.test_source", .member = at<kData, &DataSpec::test_source>(),
   .doc = "What to test on; empty = the test part that belongs to data.source.", .shapes_training = false},
  {.key = "data.order", .member = at<kData, &DataSpec::order>(),
   .doc = "Order of the samples: shuffled anew each epoch from train.seed, or sequential.",
   .allowed = words_of(Order{}), .flags = "--order", .placeholder = "ORDER"},
  {.key = "data.samples", .member = at<kData, &DataSpec::samples>(),
   .doc = "Training samples to use, the first so many; 0 = all (of generated data: 8192).",
   .unit = "samples", .range = at_least(0)},
  {.key = "data.test_samples", .member = at<kData, &DataSpec::test_samples>(),
   .doc = "Test samples to use; 0 = all (of generated data: 1024).",
   .unit = "samples", .range = at_least(0), .shapes_training = false},
  {.key = "data.augment", .member = at<kData, &DataSpec::augment>(),
   .doc = "Pictures: flip and crop at random, keyed by (seed, epoch, sample)."},
  {.key = "data.pad", .member = at<kData, &DataSpec::pad>(),
   .doc = "Zeros put around a picture before it is cropped at random.", .unit = "pixels", .range = within(0, 1024)},
  {.key = "data.normalize", .member = at<kData, &DataSpec::normalize>(),
   .doc = "Pictures: subtract the mean and divide by the deviation of each channel."},
  {.key = "data.workers", .member = at<kData, &DataSpec::workers>(),
   .doc = "Threads of a rank that decode and augment ahead of training.",
   .unit = "threads", .range = within(1, 1024), .shapes_training = false},
  {.key = "data.prefetch", .member = at<kData, &DataSpec::prefetch>(),
   .doc = "Batches of a rank that are held ready.", .unit = "batches", .range = within(1, 4096),
   .shapes_training = false},
  {.key = "data.validation", .member = at<kData, &DataSpec::validation>(),
   .doc = "Share of a text, at its end, that is kept for validation.", .range = below(0, 1)},
  {.key = "data.partition", .member = at<kData, &DataSpec::partition>(),
   .doc = "Samples that are a rank's own: none, iid, by-label, dirichlet=A; auto: iid for parallel-sgd and admm, else none.",
   .flags = "--partition", .placeholder = "KIND"},

  {.key = "optimizer.name", .member = at<kOptimizer, &OptimizerSpec::name>(),
   .doc = "The update rule.", .allowed = "sgd adam adamw adagrad", .flags = "--optimizer", .placeholder = "NAME"},
  {.key = "optimizer.lr", .member = at<kOptimizer, &OptimizerSpec::lr>(),
   .doc = "Learning rate, before the schedule.", .range = at_least(0), .flags = "--lr", .placeholder = "RATE"},
  {.key = "optimizer.momentum", .member = at<kOptimizer, &OptimizerSpec::momentum>(),
   .doc = "sgd: µ of Δw := µΔw − lr(∂E + ωw).", .range = below(0, 1)},
  {.key = "optimizer.weight_decay", .member = at<kOptimizer, &OptimizerSpec::weight_decay>(),
   .doc = "ω: added to the gradient (sgd, adam, adagrad), or applied to the weights directly (adamw).", .range = at_least(0)},
  {.key = "optimizer.beta1", .member = at<kOptimizer, &OptimizerSpec::beta1>(),
   .doc = "adam, adamw: decay of the mean of gradients.", .range = below(0, 1)},
  {.key = "optimizer.beta2", .member = at<kOptimizer, &OptimizerSpec::beta2>(),
   .doc = "adam, adamw: decay of the mean of squared gradients.", .range = below(0, 1)},
  {.key = "optimizer.eps", .member = at<kOptimizer, &OptimizerSpec::eps>(),
   .doc = "adam, adamw, adagrad: added to the denominator.", .range = above(0)},
  {.key = "optimizer.clip_norm", .member = at<kOptimizer, &OptimizerSpec::clip_norm>(),
   .doc = "Gradients longer than this (norm over all parameters) are scaled down to it; 0 = off.",
   .range = at_least(0)},
  {.key = "optimizer.share", .member = at<kOptimizer, &OptimizerSpec::share>(),
   .doc = "Each rank of a host updates its own copy (replicated) or its share of one common copy (divided).",
   .allowed = words_of(OptimizerShare{})},

  {.key = "schedule.name", .member = at<kSchedule, &ScheduleSpec::name>(),
   .doc = "How the learning rate changes during the run.", .allowed = "constant step cosine poly",
   .flags = "--lr-schedule", .placeholder = "NAME"},
  {.key = "schedule.power", .member = at<kSchedule, &ScheduleSpec::power>(),
   .doc = "poly: the exponent p of lr·(1 − step/steps)^p.", .range = above(0)},
  {.key = "schedule.milestones", .member = at<kSchedule, &ScheduleSpec::milestones>(),
   .doc = "step: when the rate is multiplied by schedule.gamma, in rising order.", .unit = "epochs",
   .range = above(0)},
  {.key = "schedule.gamma", .member = at<kSchedule, &ScheduleSpec::gamma>(),
   .doc = "step: the factor at each milestone.", .range = above(0)},
  {.key = "schedule.warmup_steps", .member = at<kSchedule, &ScheduleSpec::warmup_steps>(),
   .doc = "Steps over which the rate rises linearly from zero.", .unit = "steps", .range = at_least(0)},
  {.key = "schedule.min_lr", .member = at<kSchedule, &ScheduleSpec::min_lr>(),
   .doc = "cosine: the rate at the end.", .range = at_least(0)},
  {.key = "schedule.scale_base_batch", .member = at<kSchedule, &ScheduleSpec::scale_base_batch>(),
   .doc = "The rate is multiplied by train.global_batch / this (linear scaling); 0 = off.", .unit = "samples",
   .range = at_least(0)},

  {.key = "train.ranks", .member = at<kTrain, &TrainSpec::ranks>(),
   .doc = "Processes that train together.", .unit = "processes", .range = within(1, 65536),
   .flags = "-n,--ranks", .placeholder = "N"},
  {.key = "train.threads", .member = at<kTrain, &TrainSpec::threads>(),
   .doc = "Threads of a rank; 0 = the cores shared out among the ranks, at least 1.",
   .unit = "threads", .range = within(0, 4096), .flags = "--threads", .placeholder = "N"},
  {.key = "train.threads_mode", .member = at<kTrain, &TrainSpec::threads_mode>(),
   .doc = "Threads split each operation (op), each takes its own part of the batch (batch), or each a part of the layers (layer).",
   .allowed = words_of(ThreadsMode{}), .flags = "--threads-mode", .placeholder = "MODE"},
  {.key = "train.epochs", .member = at<kTrain, &TrainSpec::epochs>(),
   .doc = "Passes over the data; counts only while train.steps is 0.", .unit = "epochs", .range = at_least(0),
   .flags = "--epochs", .placeholder = "E", .shapes_training = false},
  {.key = "train.steps", .member = at<kTrain, &TrainSpec::steps>(),
   .doc = "Updates of the weights; 0 = as many as train.epochs needs.", .unit = "steps", .range = at_least(0),
   .flags = "--steps", .placeholder = "N", .shapes_training = false},
  {.key = "train.global_batch", .member = at<kTrain, &TrainSpec::global_batch>(),
   .doc = "Samples of one step over all ranks, a multiple of train.ranks.", .unit = "samples",
   .range = at_least(1), .flags = "--global-batch", .placeholder = "N"},
  {.key = "train.precision", .member = at<kTrain, &TrainSpec::precision>(),
   .doc = "Arithmetic; bf16 keeps fp32 master weights.", .allowed = words_of(Precision{}),
   .flags = "--precision", .placeholder = "P"},
  {.key = "train.seed", .member = at<kTrain, &TrainSpec::seed>(),
   .doc = "Of weights, order, augmentation and dropout; the number of ranks changes none of them.",
   .range = at_least(0), .flags = "--seed", .placeholder = "N"},
  {.key = "train.save", .member = at<kTrain, &TrainSpec::save>(),
   .doc = "Where the trained weights are written; empty = nowhere but the run folder.", .flags = "--save",
   .placeholder = "FILE.safetensors", .shapes_training = false},
  {.key = "train.hash_every", .member = at<kTrain, &TrainSpec::hash_every>(),
   .doc = "Steps between comparisons of the replicas' weights; 0 = never.", .unit = "steps",
   .range = at_least(0), .shapes_training = false},
  {.key = "train.eval_batch", .member = at<kTrain, &TrainSpec::eval_batch>(),
   .doc = "Samples of one evaluation batch of a rank; 0 = chosen automatically.", .unit = "samples",
   .range = at_least(0), .shapes_training = false},
  {.key = "train.bucket_mb", .member = at<kTrain, &TrainSpec::bucket_mb>(),
   .doc = "Size of a gradient bucket, the piece that is reduced while backward goes on.", .unit = "MB",
   .range = above(0)},
  {.key = "train.gemm", .member = at<kTrain, &TrainSpec::gemm>(),
   .doc = "Library of fp32 matrix products; auto measures speed and error at the start.",
   .allowed = "auto mkl onednn"},
  {.key = "train.layout", .member = at<kTrain, &TrainSpec::layout>(),
   .doc = "Memory layout of pictures; auto measures at the start.", .allowed = "auto contiguous channels-last"},

  {.key = "train.mesh", .member = at<kTrain, &TrainSpec::mesh>(),
   .doc = "Axes of the ranks: replica=R,stage=S; empty = all of them replicas.", .flags = "--mesh", .placeholder = "AXES"},
  {.key = "train.shard", .member = at<kTrain, &TrainSpec::shard>(),
   .doc = "What ranks divide instead of holding a copy each: optimizer states, gradients too, parameters too (ZeRO 1, 2, 3; docs/zero.md).",
   .allowed = words_of(Shard{}), .flags = "--shard", .placeholder = "WHAT"},
  {.key = "train.hybrid", .member = at<kTrain, &TrainSpec::hybrid>(),
   .doc = "Layers that the ranks divide while the others are data-parallel: none, auto (each layer by bytes), or names between commas.",
   .flags = "--hybrid", .placeholder = "none|auto|LAYERS"},
  {.key = "train.on_failure", .member = at<kTrain, &TrainSpec::on_failure>(),
   .doc = "What the others do when a rank dies: stop, continue, or (auto) continue where ranks do not wait for each other.",
   .allowed = words_of(OnFailure{}), .flags = "--on-failure", .placeholder = "WHAT", .shapes_training = false},
  {.key = "train.emulate", .member = at<kTrain, &TrainSpec::emulate>(),
   .doc = "Slower ranks than there are: slow-rank=1:2x, jitter=4x@10%, compute=20ms; a slower network, without root: bandwidth=1gbit, latency=5ms, loss=0.1%; several between commas.",
   .flags = "--emulate", .placeholder = "WHAT", .shapes_training = false},

  {.key = "exchange.name", .member = at<kExchange, &ExchangeSpec::name>(),
   .doc = "How replicas agree; `starling strategies` describes each.",
   .allowed = "all-reduce central local-sgd parallel-sgd admm gossip parameter-server downpour", .flags = "--exchange", .placeholder = "NAME"},
  {.key = "exchange.every", .member = at<kExchange, &ExchangeSpec::every>(),
   .doc = "local-sgd, parallel-sgd, admm: steps of a round, after which the ranks exchange.", .unit = "steps",
   .range = at_least(1), .flags = "--every", .placeholder = "H"},
  {.key = "exchange.rounds", .member = at<kExchange, &ExchangeSpec::rounds>(),
   .doc = "parallel-sgd: rounds of the whole run; 1 = combine once, at the end; 0 = every exchange.every steps.",
   .unit = "rounds", .range = at_least(0), .flags = "--rounds", .placeholder = "R"},
  {.key = "exchange.combine", .member = at<kExchange, &ExchangeSpec::combine>(),
   .doc = "parallel-sgd: what the driver makes of the ranks' weights.", .allowed = "average best",
   .flags = "--combine", .placeholder = "HOW"},
  {.key = "exchange.central", .member = at<kExchange, &ExchangeSpec::central>(),
   .doc = "central: rank 0 updates the one copy alone (master), or each rank its part (divided).",
   .allowed = words_of(CentralMode{}), .flags = "--central", .placeholder = "HOW"},
  {.key = "exchange.graph", .member = at<kExchange, &ExchangeSpec::graph>(),
   .doc = "gossip: who hears whom.", .allowed = "ring torus exponential", .flags = "--graph", .placeholder = "NAME"},
  {.key = "exchange.rho", .member = at<kExchange, &ExchangeSpec::rho>(),
   .doc = "admm: penalty on the distance to the consensus.", .range = above(0)},
  {.key = "exchange.codec", .member = at<kExchange, &ExchangeSpec::codec>(),
   .doc = "How gradients are written to travel (all-reduce; pushes to servers), or deltas (local-sgd): none, fp16, bf16, int8, 1bit, threshold, lowrank, prune (docs/codecs.md).",
   .flags = "--codec", .placeholder = "NAME[:KEY=VALUE]"},
  {.key = "exchange.pull_codec", .member = at<kExchange, &ExchangeSpec::pull_codec>(),
   .doc = "parameter-server, downpour: how weights are written to travel from a server: none, fp16, bf16, int8, 1bit, lowrank, prune (docs/codecs.md).",
   .flags = "--pull-codec", .placeholder = "NAME[:KEY=VALUE]"},
  {.key = "exchange.servers", .member = at<kExchange, &ExchangeSpec::servers>(),
   .doc = "parameter-server, downpour: server shards, processes beside the ranks.", .unit = "processes",
   .range = within(1, 4096), .flags = "--servers", .placeholder = "S"},
  {.key = "exchange.staleness", .member = at<kExchange, &ExchangeSpec::staleness>(),
   .doc = "parameter-server: clocks that a read may miss: 0 = synchronous, a number, or inf.",
   .flags = "--staleness", .placeholder = "0|S|inf"},
  {.key = "exchange.backup", .member = at<kExchange, &ExchangeSpec::backup>(),
   .doc = "parameter-server, synchronous: a clock does without its last so many gradients, and drops them.",
   .unit = "workers", .range = at_least(0), .flags = "--backup", .placeholder = "B"},
  {.key = "exchange.reduction_order", .member = at<kExchange, &ExchangeSpec::reduction_order>(),
   .doc = "parameter-server, synchronous: gradients are added in rank order (fixed: the bits of all-reduce) or as they come.",
   .allowed = "fixed arrival", .flags = "--reduction-order", .placeholder = "HOW"},
  {.key = "exchange.staleness_weight", .member = at<kExchange, &ExchangeSpec::staleness_weight>(),
   .doc = "parameter-server, asynchronous: a step is divided by 1 + its staleness."},
  {.key = "exchange.push_every", .member = at<kExchange, &ExchangeSpec::push_every>(),
   .doc = "downpour: steps whose gradients are added up for one push.", .unit = "steps", .range = at_least(1)},
  {.key = "exchange.fetch_every", .member = at<kExchange, &ExchangeSpec::fetch_every>(),
   .doc = "downpour: steps between two pulls.", .unit = "steps", .range = at_least(1)},
  {.key = "exchange.adaptive_rho", .member = at<kExchange, &ExchangeSpec::adaptive_rho>(),
   .doc = "admm: the penalty follows the residuals (Boyd et al. 2011, 3.4.1)."},

  {.key = "pipeline.schedule", .member = at<kPipeline, &PipelineSpec::schedule>(),
   .doc = "Order of the micro-batches through the stages: naive, gpipe, 1f1b, interleaved, or file:PATH with a table.",
   .flags = "--schedule", .placeholder = "NAME"},
  {.key = "pipeline.micro_batches", .member = at<kPipeline, &PipelineSpec::micro_batches>(),
   .doc = "Pieces that a step's batch is cut into.", .range = at_least(1), .flags = "--micro-batches", .placeholder = "M"},
  {.key = "pipeline.chunks", .member = at<kPipeline, &PipelineSpec::chunks>(),
   .doc = "interleaved: stages that each rank holds.", .range = at_least(1)},
  {.key = "pipeline.activations", .member = at<kPipeline, &PipelineSpec::activations>(),
   .doc = "How activations and their gradients travel between stages.", .allowed = "none fp16 bf16 int8"},

  {.key = "run.dir", .member = at<kRun, &RunFolderSpec::dir>(),
   .doc = "The run's folder: logs, events, checkpoints; empty = runs/<date>-<model>.", .flags = "--run-dir",
   .placeholder = "DIR", .shapes_training = false},
  {.key = "run.resume", .member = at<kRun, &RunFolderSpec::resume>(),
   .doc = "Go on from the newest whole checkpoint of the run folder (auto), from a given one (PATH), or never.",
   .flags = "--resume", .placeholder = "auto|never|PATH", .shapes_training = false},

  {.key = "checkpoint.every", .member = at<kCheckpoint, &CheckpointSpec::every>(),
   .doc = "Steps between checkpoints; 0 = only when the run is asked to end (SIGTERM).", .unit = "steps",
   .range = at_least(0), .shapes_training = false},
  {.key = "checkpoint.keep", .member = at<kCheckpoint, &CheckpointSpec::keep>(),
   .doc = "Whole checkpoints that are kept.", .range = at_least(1), .shapes_training = false},

  {.key = "comm.timeout_s", .member = at<kComm, &CommSpec::timeout_s>(),
   .doc = "Longest wait for another rank; the error names the late one.", .unit = "s", .range = {.min = 0, .max = 1e6, .min_open = true},
   .shapes_training = false},
  {.key = "comm.interface", .member = at<kComm, &CommSpec::interface>(),
   .doc = "Network interface (name or address) between hosts; empty = the route to the store.",
   .shapes_training = false},
  {.key = "comm.key_file", .member = at<kComm, &CommSpec::key_file>(),
   .doc = "File of the 256-bit job key, readable by its owner only; needed between hosts.",
   .shapes_training = false},
  {.key = "comm.algorithm", .member = at<kComm, &CommSpec::algorithm>(),
   .doc = "Collectives between hosts; auto takes what was tuned, else what the cost formulas find (docs/communication.md).",
   .allowed = "auto ring direct halving-doubling binomial-tree double-tree bruck star hierarchical", .flags = "--collective", .placeholder = "NAME",
   .shapes_training = false},
  {.key = "comm.security", .member = at<kComm, &CommSpec::security>(),
   .doc = "Data on TCP connections: as it is, authenticated, or encrypted too; control messages are authenticated always.",
   .allowed = "none auth encrypt",
   .flags = "--net-security", .placeholder = "HOW", .shapes_training = false},
  {.key = "comm.shared_memory", .member = at<kComm, &CommSpec::shared_memory>(),
   .doc = "Ranks of one host meet in shared memory; false = TCP between them too.", .shapes_training = false},
  {.key = "comm.engine", .member = at<kComm, &CommSpec::engine>(),
   .doc = "What carries data: between hosts Starling's own TCP or UCX (RDMA), or MPI between all ranks; both loaded at run time (docs/communication.md).",
   .allowed = "starling ucx mpi", .shapes_training = false},

  {.key = "launch.hosts", .member = at<kLaunch, &LaunchSpec::hosts>(),
   .doc = "Start the ranks on these hosts, each with so many ranks at most (1): a,b:2. Without -n: as many as there is room for.",
   .flags = "--hosts", .placeholder = "A,B:SLOTS", .shapes_training = false},
  {.key = "launch.hostfile", .member = at<kLaunch, &LaunchSpec::hostfile>(),
   .doc = "The hosts from a file: a line each, `name slots=N`.", .flags = "--hostfile", .placeholder = "FILE",
   .shapes_training = false},
  {.key = "launch.command", .member = at<kLaunch, &LaunchSpec::command>(),
   .doc = "How a host is reached: called with its name and one shell command.", .flags = "--launch-command",
   .placeholder = "CMD", .shapes_training = false},
  {.key = "launch.program", .member = at<kLaunch, &LaunchSpec::program>(),
   .doc = "Where this program is on the other hosts; empty = at the same path as here.", .shapes_training = false},

  {.key = "verify.steps", .member = at<kVerify, &VerifySpec::steps>(),
   .doc = "Steps that `starling verify` compares with one process in fp64.", .unit = "steps",
   .range = at_least(1), .shapes_training = false},
  {.key = "verify.tolerance", .member = at<kVerify, &VerifySpec::tolerance>(),
   .doc = "Largest |difference| / |update| of a tensor that passes.", .range = above(0), .shapes_training = false},
});
// clang-format on

}  // namespace

std::span<const SchemaEntry> schema() {
  return kTable;
}

}  // namespace starling
