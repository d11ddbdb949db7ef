#include <algorithm>
#include <array>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "starling/spec/codec_table.h"
#include "starling/spec/schema.h"
#include "starling/spec/strategy_table.h"

namespace starling {
namespace {

template <class T, class Group>
T field_type(T Group::*);

// Returns the member that reads and writes the field `F` of the group `G` of a RunSpec.
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

// A placeholder for the names in the table of exchanges (strategy_table.h).
constexpr std::string_view kExchangeNames = "<exchanges>";
// Stand for the words of the table of codecs.
constexpr std::string_view kCodecNames = "<codecs>", kWeightCodecNames = "<weight codecs>";

// clang-format off
constexpr auto kTable = std::to_array<SchemaEntry>({
  {.key = "model.name", .member = at<kModel, &ModelSpec::name>(), .section = Section::kModel,
   .doc = "Network to train. `starling zoo ls` describes the networks.",
   .allowed = "mlp lenet5 resnet18 resnet34 resnet50 alexnet nin googlenet vgg19 gpt llama", .flags = "--model",
   .placeholder = "NAME"},
  {.key = "model.widths", .member = at<kModel, &ModelSpec::widths>(), .section = Section::kModel,
   .doc = "mlp: width of each layer, from the inputs to the classes.",
   .range = at_least(1)},
  {.key = "model.stem", .member = at<kModel, &ModelSpec::stem>(), .section = Section::kModel,
   .doc = "resnet: first layers for large images (imagenet) or small images (cifar). auto chooses by the "
          "size of the images.",
   .allowed = "auto imagenet cifar"},
  {.key = "model.classes", .member = at<kModel, &ModelSpec::classes>(), .section = Section::kModel,
   .doc = "Number of classes of a classifier. 0 takes the number from the data.",
   .range = at_least(0)},
  {.key = "model.layers", .member = at<kModel, &ModelSpec::layers>(), .section = Section::kModel,
   .doc = "gpt, llama: number of transformer blocks.",
   .range = at_least(1)},
  {.key = "model.width", .member = at<kModel, &ModelSpec::width>(), .section = Section::kModel,
   .doc = "gpt, llama: width of the residual stream, a multiple of model.heads.",
   .range = at_least(1)},
  {.key = "model.heads", .member = at<kModel, &ModelSpec::heads>(), .section = Section::kModel,
   .doc = "gpt, llama: number of attention heads in each block.",
   .range = at_least(1)},
  {.key = "model.kv_heads", .member = at<kModel, &ModelSpec::kv_heads>(), .section = Section::kModel,
   .doc = "llama: number of key and value heads in each block, a divisor of model.heads. 0 takes model.heads.",
   .range = at_least(0)},
  {.key = "model.hidden", .member = at<kModel, &ModelSpec::hidden>(), .section = Section::kModel,
   .doc = "llama: width inside the feed-forward layers. 0 takes 8/3 of model.width, rounded up to a multiple of 64.",
   .range = at_least(0)},
  {.key = "model.tokens", .member = at<kModel, &ModelSpec::tokens>(), .section = Section::kModel,
   .doc = "gpt, llama: length of the context and of each text sample.",
   .unit = "tokens", .range = at_least(1)},
  {.key = "model.vocabulary", .member = at<kModel, &ModelSpec::vocabulary>(), .section = Section::kModel,
   .doc = "gpt, llama: number of distinct tokens. 0 takes the number from the data.",
   .range = at_least(0)},
  {.key = "model.rope_theta", .member = at<kModel, &ModelSpec::rope_theta>(), .section = Section::kModel,
   .doc = "llama: base of the angles of the rotary position embedding.",
   .range = above(0)},
  {.key = "model.norm_eps", .member = at<kModel, &ModelSpec::norm_eps>(), .section = Section::kModel,
   .doc = "llama: number that normalizations add to the mean of the squares.",
   .range = at_least(0)},
  {.key = "model.tied", .member = at<kModel, &ModelSpec::tied>(), .section = Section::kModel,
   .doc = "llama: the token embedding is also the matrix of the output layer."},
  {.key = "model.dropout", .member = at<kModel, &ModelSpec::dropout>(), .section = Section::kModel,
   .doc = "gpt, alexnet, nin, googlenet, vgg19: probability of dropping an activation.",
   .range = below(0, 1)},
  {.key = "model.batch_norm", .member = at<kModel, &ModelSpec::batch_norm>(), .section = Section::kModel,
   .doc = "Batch statistics over the samples of each rank (local) or of all ranks (sync).",
   .allowed = words_of(BatchNorm{})},
  {.key = "model.conv", .member = at<kModel, &ModelSpec::conv>(), .section = Section::kModel,
   .doc = "Algorithm of convolutions: libtorch's choice (auto), or im2col and a matrix product (im2col).",
   .allowed = words_of(ConvAlgorithm{}), .flags = "--conv", .placeholder = "ALGORITHM"},
  {.key = "model.init", .member = at<kModel, &ModelSpec::init>(), .section = Section::kModel,
   .doc = "File with the initial weights, by parameter name: safetensors, or .pt of torch.save. If empty, weights "
          "are drawn at random from train.seed.",
   .flags = "--init", .placeholder = "FILE"},

  {.key = "data.source", .member = at<kData, &DataSpec::source>(), .section = Section::kData,
   .doc = "Training data: idx:DIR, cifar-bin:DIR, images:PATH, text:FILE, served:HOST:PORT[,key=FILE], or "
          "the generated sets digits and grammar.",
   .suggestions = "digits grammar idx: cifar-bin: images: text: served:",
   .flags = "--data", .placeholder = "SOURCE"},
  {.key = "data.test_source", .member = at<kData, &DataSpec::test_source>(), .section = Section::kData,
   .doc = "Test data. If empty, the test part of data.source is used.",
   .shapes_training = false},
  {.key = "data.order", .member = at<kData, &DataSpec::order>(), .section = Section::kData,
   .doc = "Order of the samples: shuffled in every epoch by train.seed, or sequential.",
   .allowed = words_of(Order{}), .flags = "--order", .placeholder = "ORDER"},
  {.key = "data.samples", .member = at<kData, &DataSpec::samples>(), .section = Section::kData,
   .doc = "Number of training samples to use, counted from the first. 0 uses all samples, and 8192 samples "
          "of generated data.",
   .unit = "samples", .range = at_least(0)},
  {.key = "data.test_samples", .member = at<kData, &DataSpec::test_samples>(), .section = Section::kData,
   .doc = "Number of test samples to use. 0 uses all samples, and 1024 samples of generated data.",
   .unit = "samples", .range = at_least(0), .shapes_training = false},
  {.key = "data.augment", .member = at<kData, &DataSpec::augment>(), .section = Section::kData,
   .doc = "Images: flip and crop at random, keyed by (seed, epoch, sample)."},
  {.key = "data.pad", .member = at<kData, &DataSpec::pad>(), .section = Section::kData,
   .doc = "Images: width of the zero padding that is added before a random crop.",
   .unit = "pixels", .range = within(0, 1024)},
  {.key = "data.normalize", .member = at<kData, &DataSpec::normalize>(), .section = Section::kData,
   .doc = "Images: subtract the mean of each channel and divide by its standard deviation."},
  {.key = "data.workers", .member = at<kData, &DataSpec::workers>(), .section = Section::kData,
   .doc = "Threads per rank that decode and augment samples ahead of training.",
   .unit = "threads", .range = within(1, 1024), .shapes_training = false},
  {.key = "data.prefetch", .member = at<kData, &DataSpec::prefetch>(), .section = Section::kData,
   .doc = "Batches per rank that are prepared ahead of training.",
   .unit = "batches", .range = within(1, 4096), .shapes_training = false},
  {.key = "data.stall_s", .member = at<kData, &DataSpec::stall_s>(), .section = Section::kData,
   .doc = "A step that waits this long for data is reported with the file that is read. 0: no reports.",
   .unit = "s", .range = at_least(0), .shapes_training = false},
  {.key = "data.validation", .member = at<kData, &DataSpec::validation>(), .section = Section::kData,
   .doc = "Fraction of a text, taken from its end, that is used for validation.",
   .range = below(0, 1)},
  {.key = "data.partition", .member = at<kData, &DataSpec::partition>(), .section = Section::kData,
   .doc = "Which samples belong to one rank only: none, iid, by-label or dirichlet=A. auto means iid for "
          "parallel-sgd and admm, and none otherwise.",
   .suggestions = "auto none iid by-label dirichlet=",
   .flags = "--partition", .placeholder = "KIND"},
  {.key = "data.share", .member = at<kData, &DataSpec::share>(), .section = Section::kData,
   .doc = "all-reduce and central, for ranks of unequal speed: how the samples of each step are divided among "
          "the ranks. auto measures the ranks in the first steps. Otherwise one number per rank, such as 2,1. "
          "If empty, all ranks have equally many samples.",
   .suggestions = "auto", .flags = "--share", .placeholder = "auto|LIST", .shapes_training = false},

  {.key = "optimizer.name", .member = at<kOptimizer, &OptimizerSpec::name>(), .section = Section::kOptimizer,
   .doc = "Update rule.",
   .allowed = "sgd adam adamw adagrad lars lamb", .flags = "--optimizer", .placeholder = "NAME"},
  {.key = "optimizer.lr", .member = at<kOptimizer, &OptimizerSpec::lr>(), .section = Section::kOptimizer,
   .doc = "Learning rate before the schedule is applied.",
   .range = at_least(0), .flags = "--lr", .placeholder = "RATE"},
  {.key = "optimizer.momentum", .member = at<kOptimizer, &OptimizerSpec::momentum>(),
   .section = Section::kOptimizer,
   .doc = "sgd, lars: momentum µ in Δw := µΔw − lr(∂E + ωw).",
   .range = below(0, 1)},
  {.key = "optimizer.nesterov", .member = at<kOptimizer, &OptimizerSpec::nesterov>(),
   .section = Section::kOptimizer,
   .doc = "sgd: Nesterov's momentum: w := w + µΔw − lr(∂E + ωw) with the new Δw (Sutskever et al. 2013), in "
          "place of w := w + Δw."},
  {.key = "optimizer.weight_decay", .member = at<kOptimizer, &OptimizerSpec::weight_decay>(),
   .section = Section::kOptimizer,
   .doc = "Weight decay ω: added to the gradient (sgd, lars, adam, adagrad) or applied to the weights "
          "directly (adamw, lamb).",
   .range = at_least(0)},
  {.key = "optimizer.beta1", .member = at<kOptimizer, &OptimizerSpec::beta1>(),
   .section = Section::kOptimizer,
   .doc = "adam, adamw, lamb: decay of the mean of the gradients.",
   .range = below(0, 1)},
  {.key = "optimizer.beta2", .member = at<kOptimizer, &OptimizerSpec::beta2>(),
   .section = Section::kOptimizer,
   .doc = "adam, adamw, lamb: decay of the mean of the squared gradients.",
   .range = below(0, 1)},
  {.key = "optimizer.eps", .member = at<kOptimizer, &OptimizerSpec::eps>(), .section = Section::kOptimizer,
   .doc = "adam, adamw, lamb, adagrad: constant that is added to the denominator.",
   .range = above(0)},
  {.key = "optimizer.trust", .member = at<kOptimizer, &OptimizerSpec::trust>(),
   .section = Section::kOptimizer,
   .doc = "lars: the trust coefficient η. The rate of a tensor is lr·η|w| / (|∂E| + ω|w|).",
   .range = above(0)},
  {.key = "optimizer.exempt_vectors", .member = at<kOptimizer, &OptimizerSpec::exempt_vectors>(),
   .section = Section::kOptimizer,
   .doc = "Parameters of one dimension (biases, scales of norms) have no weight decay and, with lars and "
          "lamb, the rate optimizer.lr."},
  {.key = "optimizer.clip_norm", .member = at<kOptimizer, &OptimizerSpec::clip_norm>(),
   .section = Section::kOptimizer,
   .doc = "Largest norm of the gradient over all parameters. A longer gradient is scaled down to it. 0 "
          "turns clipping off.",
   .range = at_least(0)},
  {.key = "optimizer.clip_value", .member = at<kOptimizer, &OptimizerSpec::clip_value>(),
   .section = Section::kOptimizer,
   .doc = "Largest absolute value of an element of the gradient. A larger element is set to it, before "
          "clip_norm. 0 turns this clipping off. With all-reduce, updates then begin only after the "
          "backward pass.",
   .range = at_least(0)},
  {.key = "optimizer.ema_decay", .member = at<kOptimizer, &OptimizerSpec::ema_decay>(),
   .section = Section::kOptimizer,
   .doc = "Decay d of the averaged weights: a := d·a + (1 − d)·w after each update of w (exponential moving "
          "average, EMA). Evaluations use a in place of w, and files of weights hold a. 0 turns averaging off.",
   .range = below(0, 1)},
  {.key = "optimizer.share", .member = at<kOptimizer, &OptimizerSpec::share>(),
   .section = Section::kOptimizer,
   .doc = "Each rank of a host updates its own copy of the parameters (replicated), or its shard of "
          "one common copy (sharded).",
   .allowed = words_of(OptimizerShare{})},

  {.key = "schedule.name", .member = at<kSchedule, &ScheduleSpec::name>(), .section = Section::kOptimizer,
   .doc = "How the learning rate changes during the run.",
   .allowed = "constant step cosine poly", .flags = "--lr-schedule", .placeholder = "NAME"},
  {.key = "schedule.power", .member = at<kSchedule, &ScheduleSpec::power>(), .section = Section::kOptimizer,
   .doc = "poly: exponent p of lr·(1 − step/steps)^p.",
   .range = above(0)},
  {.key = "schedule.milestones", .member = at<kSchedule, &ScheduleSpec::milestones>(),
   .section = Section::kOptimizer,
   .doc = "step: epochs at which the learning rate is multiplied by schedule.gamma, in ascending order.",
   .unit = "epochs", .range = above(0)},
  {.key = "schedule.gamma", .member = at<kSchedule, &ScheduleSpec::gamma>(), .section = Section::kOptimizer,
   .doc = "step: factor that is applied at each milestone.",
   .range = above(0)},
  {.key = "schedule.warmup_steps", .member = at<kSchedule, &ScheduleSpec::warmup_steps>(),
   .section = Section::kOptimizer,
   .doc = "Number of steps over which the learning rate rises linearly from zero.",
   .unit = "steps", .range = at_least(0)},
  {.key = "schedule.warmup_share", .member = at<kSchedule, &ScheduleSpec::warmup_share>(),
   .section = Section::kOptimizer,
   .doc = "Share of the run's steps over which the learning rate rises from zero, if "
          "schedule.warmup_steps is 0.",
   .range = below(0, 1)},
  {.key = "schedule.min_lr", .member = at<kSchedule, &ScheduleSpec::min_lr>(), .section = Section::kOptimizer,
   .doc = "cosine: learning rate at the end of the run.",
   .range = at_least(0)},
  {.key = "schedule.scale_base_batch", .member = at<kSchedule, &ScheduleSpec::scale_base_batch>(),
   .section = Section::kOptimizer,
   .doc = "The batch for which the learning rate was chosen. With another train.global_batch the rate is "
          "scaled by schedule.scale. 0 turns scaling off.",
   .unit = "samples", .range = at_least(0)},
  {.key = "schedule.scale", .member = at<kSchedule, &ScheduleSpec::scale>(), .section = Section::kOptimizer,
   .doc = "How the rate is scaled for a batch that is k times schedule.scale_base_batch: by k (linear), by "
          "the square root of k (sqrt), or by k to the power of 0.6 (firecaffe).",
   .allowed = "linear sqrt firecaffe"},

  {.key = "train.ranks", .member = at<kTrain, &TrainSpec::ranks>(), .section = Section::kRanks,
   .doc = "Number of processes that train together.",
   .unit = "processes", .range = within(1, 65536), .flags = "-n,--ranks", .placeholder = "N"},
  {.key = "train.threads", .member = at<kTrain, &TrainSpec::threads>(), .section = Section::kRanks,
   .doc = "Threads per rank. 0 divides the cores equally among the ranks, with at least one thread per rank. "
          "A resumed run may have another number, except with hogwild.",
   .unit = "threads", .range = within(0, 4096), .flags = "--threads", .placeholder = "N",
   .shapes_training = false},
  {.key = "train.threads_mode", .member = at<kTrain, &TrainSpec::threads_mode>(), .section = Section::kRanks,
   .doc = "How the threads of a rank divide the work: inside each operation (op), by samples of the batch "
          "(batch), by layers of the model (layer), or by samples, with updates that do not wait for other "
          "threads (hogwild).",
   .allowed = words_of(ThreadsMode{}), .flags = "--threads-mode", .placeholder = "MODE"},
  {.key = "train.hogwild", .member = at<kTrain, &TrainSpec::hogwild>(), .section = Section::kRanks,
   .doc = "hogwild: which elements an update of a thread changes: all (dense), or those whose gradient is "
          "not 0 (sparse).",
   .allowed = words_of(HogwildUpdates{})},
  {.key = "train.thread_updates", .member = at<kTrain, &TrainSpec::thread_updates>(),
   .section = Section::kRanks,
   .doc = "hogwild: number of updates of each thread in a step, each with a mini-batch of its own.",
   .unit = "updates", .range = within(1, 1 << 20)},
  {.key = "train.epochs", .member = at<kTrain, &TrainSpec::epochs>(), .section = Section::kTraining,
   .doc = "Number of passes over the data. Used if train.steps is 0.",
   .unit = "epochs", .range = at_least(0), .flags = "--epochs", .placeholder = "E", .shapes_training = false},
  {.key = "train.steps", .member = at<kTrain, &TrainSpec::steps>(), .section = Section::kTraining,
   .doc = "Number of updates of the weights. 0 derives the number from train.epochs.",
   .unit = "steps", .range = at_least(0), .flags = "--steps", .placeholder = "N", .shapes_training = false},
  {.key = "train.global_batch", .member = at<kTrain, &TrainSpec::global_batch>(),
   .section = Section::kTraining,
   .doc = "Samples per step over all ranks, a multiple of the number of replicas. The batch that you do not "
          "give becomes the nearest such number.",
   .unit = "samples", .range = at_least(1), .flags = "--global-batch", .placeholder = "N"},
  {.key = "train.accumulate", .member = at<kTrain, &TrainSpec::accumulate>(),
   .section = Section::kTraining,
   .doc = "Number of parts in which a rank computes its samples of a step, one after another. Their gradients "
          "are added before the update, so that only the activations of one part are in memory. In bf16, "
          "the gradients are added in bf16.",
   .range = at_least(1), .flags = "--accumulate", .placeholder = "K", .shapes_training = false},
  {.key = "train.precision", .member = at<kTrain, &TrainSpec::precision>(), .section = Section::kTraining,
   .doc = "Precision of the arithmetic. bf16 keeps the master weights in fp32.",
   .allowed = words_of(Precision{}), .flags = "--precision", .placeholder = "P"},
  {.key = "train.seed", .member = at<kTrain, &TrainSpec::seed>(), .section = Section::kTraining,
   .doc = "Seed of the weights, the order of the samples, augmentation and dropout. The number of ranks "
          "does not affect them.",
   .range = at_least(0), .flags = "--seed", .placeholder = "N"},
  {.key = "train.save", .member = at<kTrain, &TrainSpec::save>(), .section = Section::kRun,
   .doc = "File to which the trained weights are written: .safetensors, or .pt for torch.load. If empty, they are "
          "written to the run folder only.",
   .flags = "--save", .placeholder = "FILE", .shapes_training = false},
  {.key = "train.hash_every", .member = at<kTrain, &TrainSpec::hash_every>(), .section = Section::kRun,
   .doc = "Steps between comparisons of the replicas' weights. 0 turns comparisons off.",
   .unit = "steps", .range = at_least(0), .shapes_training = false},
  {.key = "train.eval_batch", .member = at<kTrain, &TrainSpec::eval_batch>(), .section = Section::kTraining,
   .doc = "Samples per rank in a batch of the evaluation. 0 selects the number automatically.",
   .unit = "samples", .range = at_least(0), .shapes_training = false},
  {.key = "train.bucket_mb", .member = at<kTrain, &TrainSpec::bucket_mb>(), .section = Section::kParallel,
   .doc = "Size of a gradient bucket. A complete bucket is reduced while the backward pass continues.",
   .unit = "MB", .range = above(0)},
  {.key = "train.gemm", .member = at<kTrain, &TrainSpec::gemm>(), .section = Section::kTraining,
   .doc = "Library for fp32 matrix products. If auto: MKL, or with --tune the faster library.",
   .allowed = "auto mkl onednn"},
  {.key = "train.layout", .member = at<kTrain, &TrainSpec::layout>(), .section = Section::kTraining,
   .doc = "Memory layout of images. auto is channels-last if the model has convolutions, can compute in "
          "this layout and does not train in fp64, or the faster layout under train.tune.",
   .allowed = "auto contiguous channels-last"},
  {.key = "train.device", .member = at<kTrain, &TrainSpec::device>(), .section = Section::kRanks,
   .doc = "Where a rank computes (experimental except for cpu). cuda is a GPU, and the ranks of a host use "
          "its GPUs in turn. auto is cuda if there is a usable GPU, and privateuseone is a device that the "
          "program adds to libtorch.",
   .allowed = words_of(DeviceKind{}), .flags = "--device", .placeholder = "DEVICE",
   .shapes_training = false},
  {.key = "train.tune", .member = at<kTrain, &TrainSpec::tune>(), .section = Section::kTraining,
   .doc = "Measures train.gemm and train.layout before the first step where they are auto, and the cut of a "
          "pipeline that compresses what its stages send. Two runs may then differ in their roundings.",
   .flags = "--tune", .shapes_training = false},

  {.key = "train.mesh", .member = at<kTrain, &TrainSpec::mesh>(), .section = Section::kParallel,
   .doc = "Axes of the device mesh, for example replica=2,stage=2 or tensor=2. If empty, every rank is a "
          "replica.",
   .flags = "--mesh", .placeholder = "AXES"},
  {.key = "train.shard", .member = at<kTrain, &TrainSpec::shard>(), .section = Section::kParallel,
   .doc = "What the replicas shard instead of keeping a copy each: optimizer states, also gradients, also "
          "parameters (ZeRO 1, 2, 3). The first two work with exchange.codec.",
   .allowed = words_of(Shard{}), .flags = "--shard", .placeholder = "WHAT"},
  {.key = "train.hybrid", .member = at<kTrain, &TrainSpec::hybrid>(), .section = Section::kParallel,
   .doc = "Layers that the ranks shard while all other layers are data-parallel: none, auto (by bytes), or "
          "layer names separated by commas.",
   .flags = "--hybrid", .placeholder = "none|auto|LAYERS"},
  {.key = "train.on_failure", .member = at<kTrain, &TrainSpec::on_failure>(), .section = Section::kRun,
   .doc = "What the remaining ranks do when a rank fails: stop or continue. auto continues if the workers "
          "of parameter servers do not wait for each other, and stops otherwise.",
   .allowed = words_of(OnFailure{}), .flags = "--on-failure", .placeholder = "WHAT",
   .shapes_training = false},
  {.key = "train.quorum", .member = at<kTrain, &TrainSpec::quorum>(), .section = Section::kRun,
   .doc = "Which ranks continue after a loss: majority (at least half of the ranks whose death is not "
          "known), or any. With any, both sides of a broken network may continue.",
   .allowed = words_of(Quorum{}), .flags = "--quorum", .placeholder = "WHICH",
   .shapes_training = false},
  {.key = "train.emulate", .member = at<kTrain, &TrainSpec::emulate>(), .section = Section::kEmulation,
   .doc = "Slow down ranks or the network to study their effect, for example slow-rank=1:2x, jitter=4x@10%, "
          "compute=20ms, bandwidth=1gbit, latency=5ms, loss=0.1%. Separate several emulations with commas.",
   .flags = "--emulate", .placeholder = "WHAT", .shapes_training = false},

#include "starling/spec/exchange_keys.inc"

  {.key = "pipeline.schedule", .member = at<kPipeline, &PipelineSpec::schedule>(),
   .section = Section::kParallel,
   .doc = "Order in which micro-batches pass through the stages: naive, gpipe, 1f1b, interleaved, or "
          "file:PATH with a table, which has pipeline.micro_batches micro-batches.",
   .suggestions = "naive gpipe 1f1b interleaved", .flags = "--schedule", .placeholder = "NAME"},
  {.key = "pipeline.micro_batches", .member = at<kPipeline, &PipelineSpec::micro_batches>(),
   .section = Section::kParallel, .doc = "Number of micro-batches per step.",
   .range = at_least(1), .flags = "--micro-batches", .placeholder = "M"},
  {.key = "pipeline.chunks", .member = at<kPipeline, &PipelineSpec::chunks>(),
   .section = Section::kParallel, .doc = "interleaved: number of stages per rank.", .range = at_least(1)},
  {.key = "pipeline.activations", .member = at<kPipeline, &PipelineSpec::activations>(),
   .section = Section::kParallel,
   .doc = "Compression of the activations, and of their gradients, that pass between stages.",
   .allowed = "none fp16 bf16 int8 calibrated-int8"},
  {.key = "pipeline.calibration_steps", .member = at<kPipeline, &PipelineSpec::calibration_steps>(),
   .section = Section::kParallel,
   .doc = "calibrated-int8: steps in which activations pass exactly while their ranges are recorded.",
   .unit = "steps", .range = at_least(1)},
  {.key = "pipeline.recalibrate_every", .member = at<kPipeline, &PipelineSpec::recalibrate_every>(),
   .section = Section::kParallel, .doc = "calibrated-int8: steps per calibration. 0 calibrates only once.",
   .unit = "steps", .range = at_least(0)},
  {.key = "pipeline.saturation_limit", .member = at<kPipeline, &PipelineSpec::saturation_limit>(),
   .section = Section::kParallel,
   .doc = "calibrated-int8: share of the values of a tensor that may saturate in a step. Beyond it, the next "
          "steps calibrate all ranges anew. 100 turns this off.",
   .unit = "%", .range = within(0, 100)},
  {.key = "pipeline.percentile", .member = at<kPipeline, &PipelineSpec::percentile>(),
   .section = Section::kParallel,
   .doc = "calibrated-int8: share of the magnitudes that a range includes. Larger values saturate.",
   .unit = "%", .range = {.min = 0, .max = 100, .min_open = true}},

  {.key = "run.dir", .member = at<kRun, &RunFolderSpec::dir>(), .section = Section::kRun,
   .doc = "Run folder for logs, events and checkpoints. If empty, the folder is runs/<date>-<time>-<model>.",
   .flags = "--run-dir", .placeholder = "DIR", .shapes_training = false},
  {.key = "run.resume", .member = at<kRun, &RunFolderSpec::resume>(), .section = Section::kRun,
   .doc = "Resume from the newest complete checkpoint in the run folder (auto), from a given checkpoint "
          "(PATH), or never.",
   .flags = "--resume", .placeholder = "auto|never|PATH", .shapes_training = false},
  {.key = "run.tensorboard", .member = at<kRun, &RunFolderSpec::tensorboard>(), .section = Section::kRun,
   .doc = "Write the losses, metrics, rates and times of the run also as event files of TensorBoard, in the "
          "folder tensorboard of the run folder.",
   .flags = "--tensorboard", .shapes_training = false},

  {.key = "checkpoint.every", .member = at<kCheckpoint, &CheckpointSpec::every>(), .section = Section::kRun,
   .doc = "Steps between checkpoints. 0 writes none by steps.",
   .unit = "steps", .range = at_least(0), .shapes_training = false},
  {.key = "checkpoint.minutes", .member = at<kCheckpoint, &CheckpointSpec::minutes>(),
   .section = Section::kRun,
   .doc = "Minutes between checkpoints. A checkpoint by steps counts, too. 0 writes none by time. Downpour "
          "with exchange.fetch_every above 1 and runs with backup workers write none by time.",
   .unit = "min", .range = {.min = 0, .max = 1e6}, .shapes_training = false},
  {.key = "checkpoint.keep", .member = at<kCheckpoint, &CheckpointSpec::keep>(), .section = Section::kRun,
   .doc = "Number of complete checkpoints to keep.",
   .range = at_least(1), .shapes_training = false},

  {.key = "comm.timeout_s", .member = at<kComm, &CommSpec::timeout_s>(), .section = Section::kNetwork,
   .doc = "Longest time to wait for another rank. The error names the late rank.",
   .unit = "s", .range = {.min = 0, .max = 1e6, .min_open = true}, .shapes_training = false},
  {.key = "comm.dead_after_s", .member = at<kComm, &CommSpec::dead_after_s>(), .section = Section::kNetwork,
   .doc = "A host that has not answered for this time counts as lost. Raise it if virtual machines are "
          "paused.",
   .unit = "s", .range = {.min = 1, .max = 1e6}, .shapes_training = false},
  {.key = "comm.interface", .member = at<kComm, &CommSpec::interface>(), .section = Section::kNetwork,
   .doc = "Network interface for traffic between hosts, by name or address. If empty, the interface of the "
          "route to the store is used.",
   .shapes_training = false},
  {.key = "comm.key_file", .member = at<kComm, &CommSpec::key_file>(), .section = Section::kNetwork,
   .doc = "File with the 256-bit job key, readable by its owner only. Required between hosts, unless the launcher starts the ranks.",
   .shapes_training = false},
  {.key = "comm.algorithm", .member = at<kComm, &CommSpec::algorithm>(), .section = Section::kNetwork,
   .doc = "Algorithm of collectives between hosts. auto uses tuned choices, otherwise the cost formulas.",
   .allowed = "auto ring direct halving-doubling binomial-tree double-tree bruck star hierarchical",
   .flags = "--collective", .placeholder = "NAME", .shapes_training = false},
  {.key = "comm.security", .member = at<kComm, &CommSpec::security>(), .section = Section::kNetwork,
   .doc = "Protection of data on TCP connections: none, authentication (auth), or encryption as well "
          "(encrypt). Control messages are always authenticated.",
   .allowed = "none auth encrypt", .flags = "--net-security", .placeholder = "HOW", .shapes_training = false},
  {.key = "comm.shared_memory", .member = at<kComm, &CommSpec::shared_memory>(), .section = Section::kNetwork,
   .doc = "Use shared memory between ranks of one host. If false, they use TCP.",
   .shapes_training = false},
  {.key = "comm.engine", .member = at<kComm, &CommSpec::engine>(), .section = Section::kNetwork,
   .doc = "Transport of data: Starling's own, UCX between hosts (RDMA), or MPI between all ranks. UCX and "
          "MPI are loaded at run time.",
   .allowed = "starling ucx mpi", .shapes_training = false},

  {.key = "launch.hosts", .member = at<kLaunch, &LaunchSpec::hosts>(), .section = Section::kRanks,
   .doc = "Hosts on which to start the ranks, and the largest number of ranks on each (1 by default), for "
          "example a,b:2. Without -n, all slots are used.",
   .flags = "--hosts", .placeholder = "A,B:SLOTS", .shapes_training = false},
  {.key = "launch.hostfile", .member = at<kLaunch, &LaunchSpec::hostfile>(), .section = Section::kRanks,
   .doc = "File with one host per line, written as `name slots=N`.",
   .flags = "--hostfile", .placeholder = "FILE", .shapes_training = false},
  {.key = "launch.command", .member = at<kLaunch, &LaunchSpec::command>(), .section = Section::kRanks,
   .doc = "Command that reaches a host. It receives the name of the host and one shell command.",
   .flags = "--launch-command", .placeholder = "CMD", .shapes_training = false},
  {.key = "launch.program", .member = at<kLaunch, &LaunchSpec::program>(), .section = Section::kRanks,
   .doc = "Path of this program on the other hosts. If empty, the path is the same as here.",
   .shapes_training = false},
  {.key = "launch.start", .member = at<kLaunch, &LaunchSpec::start>(), .section = Section::kRanks,
   .doc = "How the ranks of this host start. exec: each rank executes the program. fork: ranks are copies of "
          "the launcher where that is possible, and need not load libtorch again. What the program did before "
          "starling::init has then happened once for all ranks. auto: fork for `starling`, exec for other "
          "programs.",
   .allowed = "auto fork exec", .shapes_training = false},

  {.key = "verify.steps", .member = at<kVerify, &VerifySpec::steps>(), .section = Section::kVerify,
   .doc = "Number of steps that `starling verify` compares with a single process in fp64.",
   .unit = "steps", .range = at_least(1), .shapes_training = false},
  {.key = "verify.tolerance", .member = at<kVerify, &VerifySpec::tolerance>(), .section = Section::kVerify,
   .doc = "Largest |difference| / |update| of a tensor that passes.",
   .range = above(0), .shapes_training = false},
});
// clang-format on

// Returns the names of the exchanges that read the key, with ": " behind them. Returns an empty text for a
// key that does not belong to the exchange.
std::string readers_of(const SchemaEntry& entry) {
  std::string names;
  if (table_of(entry) != "exchange" || leaf_of(entry) == "name") return names;
  for (const ExchangeTraits& exchange : exchange_table()) {
    if (exchange.reads(leaf_of(entry))) names += (names.empty() ? "" : ", ") + std::string(exchange.name);
  }
  return names + ": ";
}

// Adds the words of the tables of exchanges and codecs. The docs of an exchange's keys begin with the names
// of the exchanges. The docs of the codecs' keys end with the names of the codecs.
std::vector<SchemaEntry> with_table_words() {
  static std::deque<std::string> docs;
  std::vector<SchemaEntry> entries(kTable.begin(), kTable.end());
  for (SchemaEntry& entry : entries) {
    std::string doc = readers_of(entry) + std::string(entry.doc);
    if (entry.allowed == kExchangeNames) entry.allowed = exchange_names();
    if (entry.suggestions == kCodecNames || entry.suggestions == kWeightCodecNames) {
      const bool weights = entry.suggestions == kWeightCodecNames;
      doc += codec_list(weights, true) + ".";
      entry.suggestions =
          docs.emplace_back(std::string(codec_words(weights)) + " " + codec_stacks(weights, " "));
    }
    entry.doc = docs.emplace_back(std::move(doc));
  }
  return entries;
}

}  // namespace

std::span<const SchemaEntry> schema() {
  static const std::vector<SchemaEntry> kEntries = with_table_words();
  return kEntries;
}

}  // namespace starling
