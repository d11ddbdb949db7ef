#include "starling/spec/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "starling/base/error.h"
#include "starling/base/suggest.h"
#include "starling/spec/emulation.h"
#include "starling/spec/mesh.h"
#include "starling/spec/on_failure.h"

namespace starling {
namespace {

class Validator {
 public:
  Validator(const RunSpec& spec, const Origins& origins, int cores)
      : spec_(spec), origins_(origins), cores_(cores) {}

  std::vector<std::string> run() {
    batch();
    length();
    model();
    source();
    schedule();
    exchange();
    files();
    return std::move(warnings_);
  }

 private:
  // The error is placed at the first of `keys` that the user wrote, else at the first key.
  template <class... Args>
  [[noreturn]] void fail(const std::vector<std::string_view>& keys, fmt::format_string<Args...> format,
                         Args&&... args) const {
    std::string where(keys.front());
    for (auto key = keys.rbegin(); key != keys.rend(); ++key) {
      if (const auto it = origins_.find(*key); it != origins_.end()) where = it->second.where;
    }
    throw ConfigError(where, fmt::format(format, std::forward<Args>(args)...));
  }

  void batch() {
    const TrainSpec& train = spec_.train;
    // All ranks of a replica see its share of the batch; mesh() checks the micro-batches.
    const int64_t replicas = parse_mesh(train.mesh, train.ranks).replica;
    if (train.global_batch % replicas != 0) {
      const int64_t up = (train.global_batch / replicas + 1) * replicas;
      const int64_t down = up - replicas;
      const std::string remedy = down > 0 ? fmt::format("{} or {}", down, up) : fmt::format("{}", up);
      const std::string who = replicas == train.ranks ? fmt::format("train.ranks = {}", replicas)
                                                      : fmt::format("{} replicas", replicas);
      fail({"train.global_batch", "train.ranks", "train.mesh"},
           "train.global_batch = {} cannot be shared equally by {}: use a batch of {}", train.global_batch,
           who, remedy);
    }
    const int64_t per_rank = train.global_batch / train.ranks;
    if (train.threads_mode == ThreadsMode::kBatch && train.threads > 0 && per_rank % train.threads != 0) {
      fail({"train.threads", "train.threads_mode", "train.global_batch"},
           "train.threads_mode = \"batch\" gives each thread an equal part, but train.threads = {} does not "
           "divide the "
           "{} samples of a rank: use a train.global_batch that is a multiple of {}",
           train.threads, per_rank, train.threads * train.ranks);
    }
    if (spec_.data.samples > 0 && spec_.data.samples < train.ranks) {
      fail({"data.samples", "train.ranks"},
           "train.ranks = {} is more than data.samples = {}: each rank needs at least one sample; use fewer "
           "ranks",
           train.ranks, spec_.data.samples);
    }
    if (cores_ > 0 && train.ranks > cores_) {
      warnings_.push_back(fmt::format(
          "train.ranks = {} is more than the {} cores of this machine: it works, but slower than -n {}",
          train.ranks, cores_, cores_));
    }
  }

  void length() const {
    if (spec_.train.steps == 0 && spec_.train.epochs <= 0) {
      fail({"train.epochs", "train.steps"},
           "train.epochs and train.steps are both 0, so there is nothing to do: give --epochs or --steps");
    }
    if (spec_.train.steps > 0 && spec_.schedule.warmup_steps > spec_.train.steps) {
      fail({"schedule.warmup_steps", "train.steps"},
           "schedule.warmup_steps = {} is longer than train.steps = {}: shorten the warm-up",
           spec_.schedule.warmup_steps, spec_.train.steps);
    }
  }

  void model() const {
    const ModelSpec& model = spec_.model;
    if (model.name == "gpt" && model.width % model.heads != 0) {
      fail({"model.heads", "model.width"},
           "model.width = {} cannot be split into model.heads = {}: use a width of {}, or heads that divide "
           "it",
           model.width, model.heads, (model.width / model.heads + 1) * model.heads);
    }
    if (model.name != "mlp") return;
    if (model.widths.size() < 2) {
      fail({"model.widths"},
           "model.widths = {} needs at least the inputs and the classes, for example [784, 256, 10]",
           to_toml(Value(model.widths)));
    }
    if (model.classes > 0 && model.widths.back() != model.classes) {
      fail({"model.widths", "model.classes"},
           "model.widths ends with {}, but model.classes = {}: make them equal", model.widths.back(),
           model.classes);
    }
  }

  void source() {
    const bool text = check_source("data.source", spec_.data.source);
    if (!spec_.data.test_source.empty() && check_source("data.test_source", test_source()) != text) {
      fail({"data.test_source", "data.source"},
           "data.test_source = \"{}\" is of another kind than data.source = \"{}\"", spec_.data.test_source,
           spec_.data.source);
    }
    const bool reads_text = spec_.model.name == "gpt";
    if (reads_text != text) {
      fail({"data.source", "model.name"},
           "model.name = \"{}\" learns from {}, and data.source = \"{}\" is {}: use {}", spec_.model.name,
           reads_text ? "text" : "pictures", spec_.data.source, text ? "text" : "pictures",
           reads_text ? "grammar or text:FILE" : "digits, idx:DIR, cifar-bin:DIR or images:PATH");
    }
    if (text && spec_.data.augment) warnings_.push_back("data.augment has no effect on text");
  }

  // data.test_source with its kind: a path alone is of the kind of data.source, as data/factory.cc reads it.
  std::string test_source() const {
    const std::string &test = spec_.data.test_source, &train = spec_.data.source;
    const bool has_kind = test.find(':') != std::string::npos || test == "digits" || test == "grammar";
    const size_t colon = train.find(':');
    return has_kind || colon == std::string::npos ? test : train.substr(0, colon + 1) + test;
  }

  // Whether a source is of text; fails if it is none.
  bool check_source(std::string_view key, const std::string& source) const {
    static constexpr std::string_view kNames[] = {"idx",    "cifar-bin", "images", "text",
                                                  "served", "digits",    "grammar"};
    const size_t colon = source.find(':');
    const std::string name = source.substr(0, colon);
    const bool generated = name == "digits" || name == "grammar";
    if (std::find(std::begin(kNames), std::end(kNames), name) == std::end(kNames)) {
      const std::string near = nearest(name, {std::begin(kNames), std::end(kNames)});
      fail({key},
           "{} = \"{}\" is unknown: {}use idx:DIR, cifar-bin:DIR, images:PATH, text:FILE, served:HOST:PORT, "
           "digits or grammar",
           key, source, near.empty() ? "" : fmt::format("did you mean \"{}\"? ", near));
    }
    if (!generated && (colon == std::string::npos || colon + 1 == source.size())) {
      fail({key}, "{} = \"{}\" lacks the path: write {}:{}", key, source, name,
           name == "text"     ? "FILE"
           : name == "served" ? "HOST:PORT"
                              : "PATH");
    }
    if (generated && colon != std::string::npos) {
      fail({key}, "{} = \"{}\" is generated and takes no path: write {}", key, source, name);
    }
    return name == "text" || name == "grammar";
  }

  void schedule() const {
    const ScheduleSpec& schedule = spec_.schedule;
    if (schedule.name == "step") {
      if (schedule.milestones.empty()) {
        fail({"schedule.milestones", "schedule.name"},
             "schedule.name = \"step\" needs schedule.milestones, in epochs, for example [30, 60, 90]");
      }
      if (std::adjacent_find(schedule.milestones.begin(), schedule.milestones.end(),
                             std::greater_equal<>()) != schedule.milestones.end()) {
        fail({"schedule.milestones"}, "schedule.milestones = {} must rise",
             to_toml(Value(schedule.milestones)));
      }
    }
    if (schedule.name == "cosine" && schedule.min_lr > spec_.optimizer.lr) {
      fail({"schedule.min_lr", "optimizer.lr"}, "schedule.min_lr = {} is above optimizer.lr = {}",
           schedule.min_lr, spec_.optimizer.lr);
    }
  }

  void exchange() const {
    const ExchangeSpec& exchange = spec_.exchange;
    const std::string& name = exchange.name;
    const auto only_all_reduce = [&](bool asked, std::string_view key, const char* what) {
      if (asked && name != "all-reduce") {
        fail({key, "exchange.name"}, "{} works with exchange.name = \"all-reduce\" only, not with \"{}\"",
             what, name);
      }
    };
    only_all_reduce(spec_.train.threads_mode == ThreadsMode::kBatch, "train.threads_mode",
                    "train.threads_mode = \"batch\"");
    only_all_reduce(spec_.model.batch_norm == BatchNorm::kSync && name != "central", "model.batch_norm",
                    "model.batch_norm = \"sync\" (every step, all ranks together)");
    if (name == "central" && spec_.optimizer.clip_norm > 0)
      fail({"optimizer.clip_norm", "exchange.name"},
           "central does not clip gradients: use --exchange all-reduce");
    if (name == "central" && spec_.train.precision == Precision::kBf16)
      fail({"train.precision", "exchange.name"},
           "central trains in fp32 or fp64: use --exchange all-reduce for bf16");
    if (exchange.rounds > 0 && name != "parallel-sgd")
      fail({"exchange.rounds", "exchange.name"}, "exchange.rounds belongs to parallel-sgd, not to \"{}\"",
           name);
    codecs();
    server();
    mesh();
    tensor();
    hybrid();
    shard();
    const Emulation emulation = parse_emulation(spec_.train.emulate);
    for (const auto& slow : emulation.slow_ranks) {
      if (slow.rank >= spec_.train.ranks)
        fail({"train.emulate", "train.ranks"}, "train.emulate names rank {}, but there are {} ranks, from 0",
             slow.rank, spec_.train.ranks);
    }
    if (emulation.shapes_links() && spec_.comm.engine != "starling")
      fail({"comm.engine", "train.emulate"},
           "an emulated link shapes Starling's own TCP, not what goes by {}: use comm.engine=starling",
           spec_.comm.engine);
    partition();
    on_failure();
    engine();
  }

  void engine() const {
    if (spec_.comm.engine != "mpi") return;
    const auto refuse = [&](bool asked, std::string_view key, std::string_view what) {
      if (asked)
        fail({"comm.engine", key}, "{} needs Starling's own engine, not comm.engine = \"mpi\"", what);
    };
    refuse(spec_.exchange.name == "central", "exchange.name", "central storage in the memory of a host");
    refuse(spec_.comm.algorithm != "auto", "comm.algorithm", "a collective by name");
    refuse(spec_.comm.security != "none", "comm.security", "authenticated or encrypted data");
    refuse(parse_emulation(spec_.train.emulate).shapes_links(), "train.emulate", "an emulated link");
    refuse(spec_.train.on_failure == OnFailure::kContinue, "train.on_failure",
           "going on without a lost rank");
    refuse(!spec_.launch.hosts.empty() || !spec_.launch.hostfile.empty(), "launch.hosts",
           "starting ranks by --hosts");
  }

  void on_failure() const {
    if (spec_.train.on_failure != OnFailure::kContinue) return;
    const auto only = [&](bool other, std::string_view key, const std::string& what) {
      if (other)
        fail({"train.on_failure", key},
             "train.on_failure = \"continue\" works with all-reduce, parameter-server and downpour on whole "
             "models, "
             "not with {}, where a rank that dies takes what it alone held with it: use \"stop\" and "
             "checkpoints",
             what);
    };
    only(!has_whole_models(spec_), "train.mesh", "a model cut over ranks");
    if (has_servers(spec_)) return;
    only(spec_.exchange.name != "all-reduce", "exchange.name", spec_.exchange.name);
    only(spec_.exchange.codec != "none", "exchange.codec", "--codec " + spec_.exchange.codec);
    only(spec_.train.shard != Shard::kNone, "train.shard", "train.shard");
    only(spec_.train.threads_mode == ThreadsMode::kLayer, "train.threads_mode", "threads_mode = \"layer\"");
    only(spec_.data.partition != "auto" && spec_.data.partition != "none", "data.partition",
         "samples that are a rank's own");
  }

  void codecs() const {
    const ExchangeSpec& exchange = spec_.exchange;
    const std::string& name = exchange.name;
    const bool serves = name == "parameter-server" || name == "downpour";
    if (exchange.codec != "none" && name != "all-reduce" && name != "local-sgd" && !serves)
      fail({"exchange.codec", "exchange.name"},
           "codecs travel with all-reduce, local-sgd and to servers (parameter-server, downpour), not with "
           "\"{}\"",
           name);
    if (exchange.pull_codec != "none" && !serves)
      fail({"exchange.pull_codec", "exchange.name"},
           "exchange.pull_codec is for the weights that a server sends, and \"{}\" has none", name);
    if (spec_.train.precision != Precision::kFp64) return;
    if (exchange.codec != "none" || exchange.pull_codec != "none")
      fail({"exchange.codec", "exchange.pull_codec", "train.precision"},
           "codecs take fp32 values: use --precision fp32");
  }

  void server() const {
    const ExchangeSpec& exchange = spec_.exchange;
    const std::string& s = exchange.staleness;
    const bool number = !s.empty() && s.size() < 10 && s.find_first_not_of("0123456789") == std::string::npos;
    if (!number && s != "inf")
      fail({"exchange.staleness"}, "exchange.staleness = \"{}\" must be 0, a number of clocks, or inf", s);
    if (exchange.backup > 0 && s != "0")
      fail({"exchange.backup", "exchange.staleness"}, "backup workers belong to --staleness 0, not to {}", s);
    if (exchange.backup >= spec_.train.ranks && exchange.name == "parameter-server")
      fail({"exchange.backup", "train.ranks"}, "{} backup workers of {} ranks leave nobody: use fewer",
           exchange.backup, spec_.train.ranks);
    if (has_servers(spec_) && spec_.train.precision == Precision::kBf16)
      fail({"train.precision", "exchange.name"}, "servers hold fp32 or fp64: use --precision fp32");
    if (exchange.name != "downpour" && (exchange.push_every > 1 || exchange.fetch_every > 1))
      fail({"exchange.push_every", "exchange.fetch_every"},
           "exchange.push_every and fetch_every belong to downpour, not to \"{}\"", exchange.name);
  }

  void mesh() const {
    const MeshSpec mesh = parse_mesh(spec_.train.mesh, spec_.train.ranks);
    const bool layers = spec_.train.threads_mode == ThreadsMode::kLayer;
    if (mesh.stage == 1 && !layers) {
      if (spec_.pipeline.activations != "none")
        fail({"pipeline.activations", "train.mesh"},
             "pipeline.activations is for what travels between stages: give --mesh stage=S, or leave it out");
      return;
    }
    if (layers && spec_.train.ranks > 1)
      fail({"train.threads_mode", "train.ranks"},
           "threads_mode = \"layer\" is the pipeline of one process: use -n 1, or --mesh stage=S");
    const std::string& name = spec_.exchange.name;
    const bool servers = !layers && has_servers(spec_);
    if (mesh.replica == 1 && !servers && (name != "all-reduce" || spec_.exchange.codec != "none"))
      fail({"exchange.name", "exchange.codec"},
           "{}, so nothing is exchanged: leave out --exchange and --codec{}",
           layers ? "threads_mode = \"layer\" has one replica" : "this pipeline has one replica",
           layers ? "" : ", or add replica=R to --mesh");
    if (servers && spec_.exchange.backup > 0)
      fail({"exchange.backup", "train.mesh"},
           "backup workers are whole replicas, and here each worker is a stage of one: leave out --backup");
    if (!layers && spec_.train.threads_mode != ThreadsMode::kOp)
      fail({"train.threads_mode", "train.mesh"},
           "a stage computes one micro-batch at a time: use --threads-mode op with --mesh stage");
    const int64_t share = spec_.train.global_batch / mesh.replica;
    if (share % spec_.pipeline.micro_batches != 0)
      fail({"pipeline.micro_batches", "train.global_batch"},
           "the {} samples of a step{} cannot be cut into {} "
           "micro-batches",
           share, mesh.replica > 1 ? " of a replica" : "", spec_.pipeline.micro_batches);
  }

  // What ranks that divide layers cannot do (docs/tensor.md).
  void tensor() const {
    const MeshSpec mesh = parse_mesh(spec_.train.mesh, spec_.train.ranks);
    if (mesh.tensor == 1) return;
    const ModelSpec& model = spec_.model;
    if (model.name == "gpt" && model.heads % mesh.tensor != 0)
      fail({"model.heads", "train.mesh"},
           "model.heads = {} cannot be divided among tensor={} ranks, which take whole heads: use {} heads, "
           "or "
           "a tensor axis that divides {}",
           model.heads, mesh.tensor, (model.heads / mesh.tensor + 1) * mesh.tensor, model.heads);
    if (model.dropout > 0)
      fail({"model.dropout", "train.mesh"},
           "inside divided layers each rank would draw another mask than one process: leave out "
           "model.dropout or the tensor axis");
    if (spec_.exchange.name == "parameter-server" || spec_.exchange.name == "downpour")
      fail({"exchange.name", "train.mesh"},
           "servers answer the ranks of a replica at different times, and these hold copies that must stay "
           "equal: use another --exchange with a tensor axis");
    if (spec_.exchange.codec != "none")
      fail({"exchange.codec", "train.mesh"},
           "a codec's blocks and scales are those of a rank's part, so that copies on the ranks of a tensor "
           "axis would drift apart: leave out --codec");
    if (spec_.train.threads_mode != ThreadsMode::kOp)
      fail({"train.threads_mode", "train.mesh"},
           "the ranks of a tensor axis compute one batch together: use --threads-mode op");
  }

  void hybrid() const {
    if (spec_.train.hybrid == "none") return;
    const auto only = [&](bool other, std::string_view key, const char* remedy) {
      if (other) fail({key, "train.hybrid"}, "train.hybrid is synchronous SGD over all ranks: {}", remedy);
    };
    const MeshSpec mesh = parse_mesh(spec_.train.mesh, spec_.train.ranks);
    only(mesh.replica != mesh.ranks(), "train.mesh", "leave out --mesh");
    only(spec_.exchange.name != "all-reduce", "exchange.name", "leave out --exchange");
    only(spec_.exchange.codec != "none", "exchange.codec", "leave out --codec");
    only(spec_.train.shard != Shard::kNone, "train.shard", "leave out --shard");
    only(spec_.train.threads_mode != ThreadsMode::kOp, "train.threads_mode", "use --threads-mode op");
    only(spec_.optimizer.share == OptimizerShare::kDivided, "optimizer.share", "leave out optimizer.share");
  }

  void shard() const {
    if (spec_.train.shard == Shard::kNone) return;
    if (spec_.exchange.name != "all-reduce" || spec_.exchange.codec != "none")
      fail({"train.shard", "exchange.name", "exchange.codec"},
           "train.shard divides what synchronous SGD holds: leave out --exchange {} and --codec {}",
           spec_.exchange.name, spec_.exchange.codec);
    const MeshSpec mesh = parse_mesh(spec_.train.mesh, spec_.train.ranks);
    if (mesh.stage > 1 && mesh.replica == 1)
      fail({"train.shard", "train.mesh"},
           "train.shard divides states between replicas, and each stage of this pipeline has one: leave out "
           "--shard, or add replica=R to --mesh");
    if (mesh.stage > 1 && spec_.train.shard == Shard::kParameters)
      fail({"train.shard", "train.mesh"},
           "--shard parameters gathers the model block by block, and the table of a pipeline needs its "
           "stage's "
           "blocks whole for every micro-batch: use --shard gradients");
    if (spec_.train.threads_mode != ThreadsMode::kOp)
      fail({"train.shard", "train.threads_mode"}, "train.shard works with --threads-mode op only");
    if (spec_.optimizer.share != OptimizerShare::kAuto)
      fail({"optimizer.share", "train.shard"},
           "with train.shard every rank updates its own share: leave out optimizer.share");
  }

  void partition() const {
    const std::string& kind = spec_.data.partition;
    const bool known = kind == "auto" || kind == "none" || kind == "iid" || kind == "by-label" ||
                       std::string_view(kind).starts_with("dirichlet=");
    if (!known)
      fail({"data.partition"},
           "data.partition = \"{}\" is unknown: use auto, none, iid, by-label or dirichlet=A", kind);
    if (kind == "none" && (spec_.exchange.name == "parallel-sgd" || spec_.exchange.name == "admm"))
      fail({"data.partition", "exchange.name"},
           "{} needs samples that are each rank's own: use --partition iid", spec_.exchange.name);
    const bool by_class = kind == "by-label" || std::string_view(kind).starts_with("dirichlet=");
    if (by_class && spec_.model.name == "gpt")
      fail({"data.partition", "model.name"}, "text has no classes to share out by: use --partition iid");
  }

  void files() const {
    static constexpr std::string_view kSuffix = ".safetensors";
    const std::string& save = spec_.train.save;
    if (!save.empty() && !save.ends_with(kSuffix) && !save.ends_with(".safetensors.index.json")) {
      fail({"train.save"}, "train.save = \"{}\" must end in {} (or {}.index.json for several files)", save,
           kSuffix, kSuffix);
    }
  }

  const RunSpec& spec_;
  const Origins& origins_;
  const int cores_;
  std::vector<std::string> warnings_;
};

}  // namespace

std::vector<std::string> validate(const RunSpec& spec, const Origins& origins, int cores) {
  return Validator(spec, origins, cores).run();
}

}  // namespace starling
