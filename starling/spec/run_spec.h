// RunSpec holds everything that determines how a run trains. The schema (schema.h) is used to parse, validate
// and print it. Each field below has one entry in the schema, with the dotted key in its comment.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace starling {

class Extensions;

// The type in which a model computes. kBf16: weights and activations in bf16, updates in fp32.
enum class Precision { kFp32, kBf16, kFp64 };
// What the threads of a rank divide: the elements of each operator, the samples, or the layers. With kHogwild
// they divide the samples and update the parameters without locks.
enum class ThreadsMode { kOp, kBatch, kLayer, kHogwild };
// Which elements an update of a thread without locks changes: all, or those whose gradient is not 0.
enum class HogwildUpdates { kDense, kSparse };
// The order in which an epoch visits the samples.
enum class Order { kShuffled, kSequential };
// What a batch norm takes its mean and variance over: the samples of the rank, or those of all ranks.
enum class BatchNorm { kLocal, kSync };
// Where the exchange `central` keeps the parameters: a shard on every rank, or all of them on rank 0.
enum class CentralMode { kSharded, kMaster };
// How convolutions are computed. kAuto: libtorch chooses. kIm2col: as a matrix product.
enum class ConvAlgorithm { kAuto, kIm2col };
// What the replicas shard instead of holding a copy each (ZeRO stages 1, 2, 3).
enum class Shard { kNone, kOptimizer, kGradients, kParameters };
// What the remaining ranks do when a rank fails. kAuto continues if the ranks are workers of servers that
// have whole models and do not wait for each other, and stops otherwise (goes_on_after_loss()).
enum class OnFailure { kAuto, kStop, kContinue };
// Which ranks continue after a loss: at least half of those whose death is not known, or any.
enum class Quorum { kMajority, kAny };
// Where a rank computes. kAuto: CUDA if there is a usable device and the strategy can use it, otherwise the
// CPU. kOwn: the device that the program has registered with libtorch (PrivateUse1).
enum class DeviceKind { kCpu, kAuto, kCuda, kOwn };
// How the ranks of a host update the parameters. Every rank updates its own copy (replicated), or its shard
// of one copy in shared memory (sharded).
enum class OptimizerShare { kAuto, kReplicated, kSharded };

// The value of ModelSpec::name for the model of a user's own program (run/run.h). No configuration can name
// it; only a program that brings its model sets it.
inline constexpr std::string_view kUserModel = "user";

// The network.
struct ModelSpec {
  std::string name = "lenet5";                   // model.name: a name that `starling zoo ls` prints
  std::vector<int64_t> widths = {784, 256, 10};  // model.widths: mlp only, inputs first, classes last
  std::string stem = "auto";                     // model.stem: auto imagenet cifar (resnets)
  int64_t classes = 0;                           // model.classes: 0 = from the data
  int64_t layers = 6;                            // model.layers: gpt, llama
  int64_t width = 384;                           // model.width: gpt, llama
  int64_t heads = 6;                             // model.heads: gpt, llama
  int64_t kv_heads = 0;                          // model.kv_heads: llama, 0 = heads
  int64_t hidden = 0;                            // model.hidden: llama, 0 = from width
  int64_t tokens = 256;                          // model.tokens: gpt, llama, context length
  int64_t vocabulary = 0;                        // model.vocabulary: 0 = from the data
  double rope_theta = 10000.0;                   // model.rope_theta: llama
  double norm_eps = 1e-5;                        // model.norm_eps: llama
  bool tied = false;                             // model.tied: llama
  double dropout = 0.0;                          // model.dropout: networks with dropout
  BatchNorm batch_norm = BatchNorm::kLocal;      // model.batch_norm: local sync
  ConvAlgorithm conv = ConvAlgorithm::kAuto;     // model.conv: auto im2col (--conv)
  std::string init;                              // model.init: FILE.safetensors or .pt (--init)

  // Whether the network is one of text.
  bool reads_text() const { return name == "gpt" || name == "llama"; }
  // The number of key and value heads in each block.
  int64_t key_value_heads() const { return kv_heads > 0 ? kv_heads : heads; }
};

// The training and test data.
struct DataSpec {
  // data.source: idx:DIR cifar-bin:DIR images:PATH text:FILE served:HOST:PORT digits grammar
  std::string source = "digits";
  std::string test_source;         // data.test_source: empty = the test part of `source`
  Order order = Order::kShuffled;  // data.order
  int64_t samples = 0;             // data.samples: 0 = all (generated: 8192)
  int64_t test_samples = 0;        // data.test_samples: 0 = all (generated: 1024)
  bool augment = false;            // data.augment: flip and pad-crop
  int64_t pad = 4;                 // data.pad: pixels of the pad-crop
  bool normalize = true;           // data.normalize
  int64_t workers = 1;             // data.workers: threads per rank that decode ahead
  int64_t prefetch = 4;            // data.prefetch: batches per rank that are prepared ahead
  double stall_s = 5;              // data.stall_s: wait for data that is reported with its file; 0 = never
  double validation = 0.1;         // data.validation: fraction of a text for validation
  // data.partition (--partition): auto none iid by-label dirichlet=A. Determines which samples belong to one
  // rank only (data/sample_partition.h). none: every batch is drawn from all samples. auto: iid for exchanges
  // whose ranks own their samples (parallel-sgd, admm), otherwise none.
  std::string partition = "auto";
  // data.share (--share): the parts of a step's samples: empty (equal), auto (measured), or one number per
  // rank between commas (spec/batch_share.h)
  std::string share;
};

// The update of the parameters.
struct OptimizerSpec {
  std::string name = "sgd";                      // optimizer.name
  double lr = 0.05;                              // optimizer.lr
  double momentum = 0.9;                         // optimizer.momentum: sgd, lars
  bool nesterov = false;                         // optimizer.nesterov: sgd
  double trust = 0.001;                          // optimizer.trust: lars
  bool exempt_vectors = false;                   // optimizer.exempt_vectors
  double weight_decay = 0.0;                     // optimizer.weight_decay
  double beta1 = 0.9;                            // optimizer.beta1
  double beta2 = 0.999;                          // optimizer.beta2
  double eps = 1e-8;                             // optimizer.eps
  double clip_norm = 0.0;                        // optimizer.clip_norm: 0 = off
  double clip_value = 0.0;                       // optimizer.clip_value: 0 = off
  double ema_decay = 0.0;                        // optimizer.ema_decay: 0 = no averaged weights
  OptimizerShare share = OptimizerShare::kAuto;  // optimizer.share: auto replicated sharded
};

// The learning rate over the steps.
struct ScheduleSpec {
  std::string name = "constant";   // schedule.name: constant step cosine poly
  double power = 0.5;              // schedule.power: poly, lr0 (1 - it/max)^power (FireCaffe)
  std::vector<double> milestones;  // schedule.milestones: step, in epochs
  double gamma = 0.1;              // schedule.gamma: step
  int64_t warmup_steps = 0;        // schedule.warmup_steps
  double warmup_share = 0.0;       // schedule.warmup_share: of the run's steps; used where warmup_steps is 0
  double min_lr = 0.0;             // schedule.min_lr: cosine
  // schedule.scale_base_batch: lr is scaled for global_batch / scale_base_batch; 0 = off
  int64_t scale_base_batch = 0;
  std::string scale = "linear";  // schedule.scale: linear sqrt firecaffe
};

// TrainSpec holds the length of a run, its ranks, and how each of them computes.
struct TrainSpec {
  int64_t ranks = 1;                                // train.ranks (-n): processes
  int64_t threads = 0;                              // train.threads: per rank; 0 = cores / ranks, at least 1
  ThreadsMode threads_mode = ThreadsMode::kOp;      // train.threads_mode: op batch layer hogwild
  HogwildUpdates hogwild = HogwildUpdates::kDense;  // train.hogwild: dense sparse
  int64_t thread_updates = 1;                       // train.thread_updates: hogwild: of a thread in a step
  double epochs = 1;                                // train.epochs: used when steps is 0
  int64_t steps = 0;                                // train.steps
  int64_t global_batch = 64;                        // train.global_batch: samples of one step over all ranks
  int64_t accumulate = 1;                           // train.accumulate: parts of a step's batch
  Precision precision = Precision::kFp32;           // train.precision: fp32 bf16 fp64
  uint64_t seed = 0;                                // train.seed
  std::string save;                                 // train.save: FILE.safetensors or .pt (--save)
  int64_t hash_every = 200;     // train.hash_every: steps between comparisons of replicas; 0 = never
  int64_t eval_batch = 0;       // train.eval_batch: samples per rank in an evaluation batch; 0 = automatic
  double bucket_mb = 8;         // train.bucket_mb: size of a gradient bucket
  std::string gemm = "auto";    // train.gemm: auto mkl onednn (fp32 matrix products)
  std::string layout = "auto";  // train.layout: auto contiguous channels-last
  DeviceKind device = DeviceKind::kCpu;  // train.device (--device): cpu auto cuda privateuseone
  bool tune = false;                     // train.tune (--tune): measure gemm and layout if auto, and the cut
  std::string mesh;                      // train.mesh (--mesh): replica=R,stage=S,tensor=T (spec/mesh.h)
  Shard shard =
      Shard::kNone;  // train.shard (--shard): none optimizer gradients parameters (docs/explanation/zero.md)
  // train.hybrid (--hybrid): none, auto (by bytes), or the names of the model-parallel layers
  std::string hybrid = "none";
  OnFailure on_failure = OnFailure::kAuto;  // train.on_failure (--on-failure): auto stop continue
  Quorum quorum = Quorum::kMajority;        // train.quorum (--quorum): majority any
  std::string emulate;  // train.emulate (--emulate): emulated slow ranks and networks (spec/emulation.h)

  // Whether each thread of a rank computes samples of its own, with operators of one thread.
  bool threads_divide_samples() const {
    return threads_mode == ThreadsMode::kBatch || threads_mode == ThreadsMode::kHogwild;
  }
};

// How replicas agree on the parameters.
struct ExchangeSpec {
  std::string name = "all-reduce";  // exchange.name (--exchange): a name in spec/exchanges.inc
  int64_t every = 8;                // exchange.every (--every): steps per synchronization round
  int64_t rounds = 0;  // exchange.rounds (--rounds): parallel-sgd: number of rounds; 0 = by exchange.every
  double block_momentum = 0;        // exchange.block_momentum: of the agreed parameters
  double outer_lr = 1;              // exchange.outer_lr: of the agreed parameters
  bool outer_nesterov = false;      // exchange.outer_nesterov: Nesterov's form of block_momentum
  int64_t local_from = 0;           // exchange.local_from: steps up to this one end with a round each
  double elastic = 0.9;             // exchange.elastic: easgd: β
  std::string combine = "average";  // exchange.combine (--combine): parallel-sgd: average best
  CentralMode central = CentralMode::kSharded;  // exchange.central (--central): sharded master
  std::string graph = "ring";                   // exchange.graph: ring torus exponential one-peer
  double rho = 0.1;                             // exchange.rho: admm: penalty
  // exchange.codec (--codec): NAME[:KEY=VALUE,…], docs/reference/codecs.md
  std::string codec = "none";
  // exchange.pull_codec (--pull-codec): compression of weights that a server sends
  std::string pull_codec = "none";
  int64_t servers = 1;          // exchange.servers (--servers): number of server shards
  int64_t team = 1;             // exchange.team: ranks of which one pushes and pulls for all
  std::string staleness = "0";  // exchange.staleness (--staleness): parameter-server: 0, a bound, or inf
  int64_t backup = 0;           // exchange.backup (--backup): slowest workers that each step ignores
  std::string reduction_order = "fixed";  // exchange.reduction_order: parameter-server: fixed arrival
  bool staleness_weight = false;          // exchange.staleness_weight: divide updates by 1 + their staleness
  std::vector<double> worker_weights;     // exchange.worker_weights: λ of each worker; empty = 1 / workers
  int64_t push_every = 1;                 // exchange.push_every: downpour: n_push
  int64_t fetch_every = 1;                // exchange.fetch_every: downpour: n_fetch
  int64_t warm_start = 0;                 // exchange.warm_start: downpour: steps of one replica alone
  bool adaptive_rho = true;               // exchange.adaptive_rho: admm
};

// The value of pipeline.activations that encodes with calibrated ranges.
inline constexpr const char* kCalibratedInt8 = "calibrated-int8";

// Pipeline parallelism. Used if the mesh has stages or threads_mode is layer.
struct PipelineSpec {
  std::string schedule =
      "1f1b";                 // pipeline.schedule (--schedule): naive gpipe 1f1b interleaved, or file:PATH
  int64_t micro_batches = 8;  // pipeline.micro_batches (--micro-batches)
  int64_t chunks = 2;         // pipeline.chunks: interleaved: stages per rank
  // pipeline.activations: compression between stages: none fp16 bf16 int8 calibrated-int8
  std::string activations = "none";
  int64_t calibration_steps = 2;    // pipeline.calibration_steps: calibrated-int8: steps that record ranges
  int64_t recalibrate_every = 500;  // pipeline.recalibrate_every: calibrated-int8: steps; 0 = never
  double saturation_limit = 1;      // pipeline.saturation_limit: calibrated-int8: % of the values of a tensor
  double percentile = 100;          // pipeline.percentile: calibrated-int8: of the magnitudes
};

// The folder of the run.
struct RunFolderSpec {
  std::string dir;              // run.dir (--run-dir); empty = runs/<date>-<time>-<model>
  std::string resume = "auto";  // run.resume: auto never PATH
  bool tensorboard = false;     // run.tensorboard (--tensorboard): also write event files of TensorBoard
};

// When checkpoints are written, and how many are kept.
struct CheckpointSpec {
  int64_t every = 0;    // checkpoint.every: steps; 0 = none by steps
  double minutes = 10;  // checkpoint.minutes: minutes between checkpoints; 0 = none by time
  int64_t keep = 2;     // checkpoint.keep: number of complete checkpoints to keep
};

// The communication between ranks.
struct CommSpec {
  double timeout_s = 60;    // comm.timeout_s: timeout of every wait
  double dead_after_s = 4;  // comm.dead_after_s: a host without an answer for this time is lost
  std::string
      interface;  // comm.interface: name or address for traffic between hosts; empty = route to the store
  std::string key_file;             // comm.key_file: 256-bit job key, mode 0600
  std::string algorithm = "auto";   // comm.algorithm (--collective): collectives between hosts
  std::string security = "none";    // comm.security (--net-security): data frames: none auth encrypt
  bool shared_memory = true;        // comm.shared_memory: false = TCP also between ranks of one host
  std::string engine = "starling";  // comm.engine: transport of data: starling ucx mpi
};

// The hosts on which ranks are started (spec/hosts.h). If none are named, ranks run on this host.
struct LaunchSpec {
  std::string hosts;     // launch.hosts (--hosts): a,b:2
  std::string hostfile;  // launch.hostfile (--hostfile)
  // launch.command (--launch-command): reaches a host by `COMMAND HOST "SHELL COMMAND"`
  std::string command = "ssh -o BatchMode=yes -o ServerAliveInterval=15";
  std::string
      program;  // launch.program: path of this program on the other hosts; empty = the path on this host
  std::string start = "auto";  // launch.start: auto fork exec
};

// What `starling verify` compares.
struct VerifySpec {
  int64_t steps = 10;        // verify.steps
  double tolerance = 1e-10;  // verify.tolerance: |difference| / |update| by tensor, fp64
};

// The whole configuration: one field for each of its tables.
struct RunSpec {
  ModelSpec model;            // The table model.
  DataSpec data;              // The table data.
  OptimizerSpec optimizer;    // The table optimizer.
  ScheduleSpec schedule;      // The table schedule.
  TrainSpec train;            // The table train.
  ExchangeSpec exchange;      // The table exchange.
  PipelineSpec pipeline;      // The table pipeline.
  RunFolderSpec run;          // The table run.
  CheckpointSpec checkpoint;  // The table checkpoint.
  CommSpec comm;              // The table comm.
  LaunchSpec launch;          // The table launch.
  VerifySpec verify;          // The table verify.
  // The exchanges, codecs, all-reduce algorithms and data sources that the program adds (spec/extensions.h).
  // Null if it adds none. The field is not a key: every rank runs the same program, which adds the same rows.
  std::shared_ptr<const Extensions> extensions;
};

}  // namespace starling
