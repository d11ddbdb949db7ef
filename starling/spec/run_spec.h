// RunSpec: everything that decides how a run trains, as one value. Parsed, validated and printed through the schema
// (schema.h); every field below has exactly one entry there, under the dotted key written beside it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace starling {

enum class Precision { kFp32, kBf16, kFp64 };
enum class ThreadsMode { kOp, kBatch, kLayer };
enum class Order { kShuffled, kSequential };
enum class BatchNorm { kLocal, kSync };
enum class CentralMode { kDivided, kMaster };
enum class ConvAlgorithm { kAuto, kIm2col };  // kAuto: libtorch's own
// What the ranks of a replica axis divide among themselves instead of holding a copy each (ZeRO stages 1, 2, 3).
enum class Shard { kNone, kOptimizer, kGradients, kParameters };
// What the others do when a rank dies. auto: continue where ranks do not wait for each other, else stop.
enum class OnFailure { kAuto, kStop, kContinue };
// Who runs the optimizer pass over parameters that the ranks of a host hold: every rank over all of its own copy, or
// every rank over its share of the one copy in shared memory.
enum class OptimizerShare { kAuto, kReplicated, kDivided };

struct ModelSpec {
  std::string name = "lenet5";                   // model.name: as `starling zoo ls`
  std::vector<int64_t> widths = {784, 256, 10};  // model.widths: mlp only, inputs first, classes last
  std::string stem = "auto";                     // model.stem: auto imagenet cifar (resnets)
  int64_t classes = 0;                           // model.classes: 0 = what the data has
  int64_t layers = 6;                            // model.layers: gpt
  int64_t width = 384;                           // model.width: gpt
  int64_t heads = 6;                             // model.heads: gpt
  int64_t tokens = 256;                          // model.tokens: gpt, context length
  int64_t vocabulary = 0;                        // model.vocabulary: 0 = what the data has
  double dropout = 0.0;                          // model.dropout: gpt and the networks that drop
  BatchNorm batch_norm = BatchNorm::kLocal;      // model.batch_norm: local sync
  ConvAlgorithm conv = ConvAlgorithm::kAuto;     // model.conv: auto im2col (--conv)
  std::string init;                              // model.init: FILE.safetensors (--init)
};

struct DataSpec {
  std::string source = "digits";   // data.source: idx:DIR cifar-bin:DIR images:PATH text:FILE digits grammar
  std::string test_source;         // data.test_source: empty = the test part that belongs to `source`
  Order order = Order::kShuffled;  // data.order
  int64_t samples = 0;             // data.samples: 0 = all (generated: 8192)
  int64_t test_samples = 0;        // data.test_samples: 0 = all (generated: 1024)
  bool augment = false;            // data.augment: flip and pad-crop
  int64_t pad = 4;                 // data.pad: pixels of the pad-crop
  bool normalize = true;           // data.normalize
  int64_t workers = 1;             // data.workers: threads that decode ahead, a rank
  int64_t prefetch = 4;            // data.prefetch: batches held ready, a rank
  double validation = 0.1;         // data.validation: share of a text kept for validation
  // data.partition (--partition): auto none iid by-label dirichlet=A. Which samples are a rank's own (data/partition.h);
  // none: every batch is drawn from all of them. auto: iid for parallel-sgd and admm, else none.
  std::string partition = "auto";
};

struct OptimizerSpec {
  std::string name = "sgd";                      // optimizer.name: sgd adam adamw adagrad
  double lr = 0.05;                              // optimizer.lr
  double momentum = 0.9;                         // optimizer.momentum: sgd
  double weight_decay = 0.0;                     // optimizer.weight_decay
  double beta1 = 0.9;                            // optimizer.beta1
  double beta2 = 0.999;                          // optimizer.beta2
  double eps = 1e-8;                             // optimizer.eps
  double clip_norm = 0.0;                        // optimizer.clip_norm: 0 = off
  OptimizerShare share = OptimizerShare::kAuto;  // optimizer.share: auto replicated divided
};

struct ScheduleSpec {
  std::string name = "constant";   // schedule.name: constant step cosine poly
  double power = 0.5;              // schedule.power: poly, lr0 (1 - it/max)^power (FireCaffe)
  std::vector<double> milestones;  // schedule.milestones: step, in epochs
  double gamma = 0.1;              // schedule.gamma: step
  int64_t warmup_steps = 0;        // schedule.warmup_steps
  double min_lr = 0.0;             // schedule.min_lr: cosine
  int64_t scale_base_batch =
      0;  // schedule.scale_base_batch: lr is multiplied by global_batch / this; 0 = off
};

struct TrainSpec {
  int64_t ranks = 1;                            // train.ranks (-n): processes
  int64_t threads = 0;                          // train.threads: per rank; 0 = cores / ranks, at least 1
  ThreadsMode threads_mode = ThreadsMode::kOp;  // train.threads_mode: op batch layer
  double epochs = 1;                            // train.epochs: used when steps is 0
  int64_t steps = 0;                            // train.steps
  int64_t global_batch = 64;                    // train.global_batch: samples of one step over all ranks
  Precision precision = Precision::kFp32;       // train.precision: fp32 bf16 fp64
  uint64_t seed = 0;                            // train.seed
  std::string save;                             // train.save: FILE.safetensors (--save)
  int64_t hash_every = 200;     // train.hash_every: steps between replica comparisons, 0 = never
  int64_t eval_batch = 0;       // train.eval_batch: samples of one evaluation batch a rank; 0 = automatic
  double bucket_mb = 8;         // train.bucket_mb: size of a gradient bucket
  std::string gemm = "auto";    // train.gemm: auto mkl onednn (fp32 matrix products)
  std::string layout = "auto";  // train.layout: auto contiguous channels-last
  std::string mesh;             // train.mesh (--mesh): replica=R,stage=S,tensor=T (spec/mesh.h)
  Shard shard = Shard::kNone;   // train.shard (--shard): none optimizer gradients parameters (docs/zero.md)
  // train.hybrid (--hybrid): none, auto (each layer by bytes), or the names of the layers that are model-parallel
  std::string hybrid = "none";
  OnFailure on_failure = OnFailure::kAuto;  // train.on_failure (--on-failure): auto stop continue
  std::string emulate;  // train.emulate (--emulate): slower ranks than there are (spec/emulation.h)
};

// How replicas agree (docs/exchanges.md).
struct ExchangeSpec {
  std::string name =
      "all-reduce";    // exchange.name (--exchange): all-reduce central local-sgd parallel-sgd admm gossip
  int64_t every = 8;   // exchange.every: local-sgd, parallel-sgd, admm: steps of a round
  int64_t rounds = 0;  // exchange.rounds (--rounds): parallel-sgd: rounds of the run; 0 = by exchange.every
  std::string combine = "average";              // exchange.combine (--combine): parallel-sgd: average best
  CentralMode central = CentralMode::kDivided;  // exchange.central (--central): divided master
  std::string graph = "ring";                   // exchange.graph: gossip: ring torus exponential
  double rho = 0.1;                             // exchange.rho: admm: penalty
  // exchange.codec (--codec): all-reduce: NAME[:KEY=VALUE,…], docs/codecs.md
  std::string codec = "none";
  // exchange.pull_codec: parameter-server, downpour: how weights travel from a server
  std::string pull_codec = "none";
  int64_t servers = 1;  // exchange.servers (--servers): parameter-server, downpour: shards, beside the ranks
  std::string staleness = "0";  // exchange.staleness (--staleness): parameter-server: 0, a bound, or inf
  int64_t backup = 0;           // exchange.backup (--backup): late workers that a clock does without
  std::string reduction_order = "fixed";  // exchange.reduction_order: parameter-server: fixed arrival
  bool staleness_weight = false;  // exchange.staleness_weight: steps are divided by 1 + their staleness
  int64_t push_every = 1;         // exchange.push_every: downpour: n_push
  int64_t fetch_every = 1;        // exchange.fetch_every: downpour: n_fetch
  bool adaptive_rho = true;       // exchange.adaptive_rho: admm
};

// Pipeline parallelism (docs/pipeline.md): used where the mesh has stages, or threads_mode is layer.
struct PipelineSpec {
  std::string schedule =
      "1f1b";                 // pipeline.schedule (--schedule): naive gpipe 1f1b interleaved, or file:PATH
  int64_t micro_batches = 8;  // pipeline.micro_batches (--micro-batches)
  int64_t chunks = 2;         // pipeline.chunks: interleaved: stages a rank
  std::string activations =
      "none";  // pipeline.activations: how they travel between stages: none fp16 bf16 int8
};

struct RunFolderSpec {
  std::string dir;              // run.dir (--run-dir); empty = runs/<date>-<model>
  std::string resume = "auto";  // run.resume: auto never PATH
};

struct CheckpointSpec {
  int64_t every = 0;  // checkpoint.every: steps, 0 = only at SIGTERM
  int64_t keep = 2;   // checkpoint.keep: whole checkpoints kept
};

struct CommSpec {
  double timeout_s = 60;  // comm.timeout_s: of every wait
  std::string
      interface;  // comm.interface: name or address to bind between hosts; empty = the route to the store
  std::string key_file;             // comm.key_file: 256-bit job key, mode 0600
  std::string algorithm = "auto";   // comm.algorithm (--collective): all-reduce between hosts, by name
  std::string security = "none";    // comm.security (--net-security): none auth encrypt: of data frames
  bool shared_memory = true;        // comm.shared_memory: false = TCP between ranks of one host too
  std::string engine = "starling";  // comm.engine: starling ucx mpi: what carries data between ranks
};

// The hosts that `-n` ranks are started on (spec/hosts.h); none: this one.
struct LaunchSpec {
  std::string hosts;     // launch.hosts (--hosts): a,b:2
  std::string hostfile;  // launch.hostfile (--hostfile)
  // launch.command (--launch-command): reaches a host, as `COMMAND HOST "SHELL COMMAND"`
  std::string command = "ssh -o BatchMode=yes -o ServerAliveInterval=15";
  std::string program;  // launch.program: this program on the other hosts; empty = the same path as here
};

struct VerifySpec {
  int64_t steps = 10;        // verify.steps
  double tolerance = 1e-10;  // verify.tolerance: |difference| / |update| by tensor, fp64
};

struct RunSpec {
  ModelSpec model;
  DataSpec data;
  OptimizerSpec optimizer;
  ScheduleSpec schedule;
  TrainSpec train;
  ExchangeSpec exchange;
  PipelineSpec pipeline;
  RunFolderSpec run;
  CheckpointSpec checkpoint;
  CommSpec comm;
  LaunchSpec launch;
  VerifySpec verify;
};

}  // namespace starling
