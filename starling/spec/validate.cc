#include "starling/spec/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "starling/base/error.h"
#include "starling/base/suggest.h"
#include "starling/spec/batch_share.h"
#include "starling/spec/codec_table.h"
#include "starling/spec/device_refusal.h"
#include "starling/spec/emulation.h"
#include "starling/spec/extensions.h"
#include "starling/spec/hogwild_refusal.h"
#include "starling/spec/mesh.h"
#include "starling/spec/on_failure.h"
#include "starling/spec/optimizer_refusal.h"
#include "starling/spec/pair_refusal.h"
#include "starling/spec/read_keys.h"
#include "starling/spec/schema.h"
#include "starling/spec/sharded_codec_refusal.h"
#include "starling/spec/source_folder.h"
#include "starling/spec/strategy_table.h"
#include "starling/spec/team_refusal.h"
#include "starling/spec/text_model.h"
#include "starling/spec/warm_up.h"

namespace starling {
namespace {

class Validator {
 public:
  Validator(const RunSpec& spec, const Origins& origins, int cores)
      : spec_(spec), origins_(origins), cores_(cores), traits_(exchange_traits(spec)) {}

  std::vector<std::string> run() {
    batch();
    length();
    model();
    source();
    schedule();
    exchange();
    files();
    for (std::string& warning : warm_up_warnings(spec_, origins_)) warnings_.push_back(std::move(warning));
    return std::move(warnings_);
  }

 private:
  // Throws ConfigError at the first of `keys` that the user wrote, otherwise at the first key.
  template <class... Args>
  [[noreturn]] void fail(const std::vector<std::string_view>& keys, fmt::format_string<Args...> format,
                         Args&&... args) const {
    std::string where(keys.front());
    for (auto key = keys.rbegin(); key != keys.rend(); ++key) {
      if (const auto it = origins_.find(*key); it != origins_.end() && !from_recipe(*key))
        where = it->second.where;
    }
    throw ConfigError(where, fmt::format(format, std::forward<Args>(args)...));
  }

  // Returns the names of the exchanges for which `has` is true, for messages.
  template <class Has>
  std::string names_of(const Has& has) const {
    return names_of_exchanges(spec_, has);
  }

  // Returns true if the key was given on the command line.
  bool typed(std::string_view key) const {
    const auto origin = origins_.find(key);
    return origin != origins_.end() &&
           (origin->second.kind == OriginKind::kSet || origin->second.kind == OriginKind::kFlag);
  }

  bool from_recipe(std::string_view key) const {
    const auto origin = origins_.find(key);
    return origin != origins_.end() && origin->second.kind == OriginKind::kRecipe;
  }

  void batch() {
    const TrainSpec& train = spec_.train;
    // All ranks of a replica process the replica's part of the batch. mesh() checks the micro-batches.
    const int64_t replicas = parse_mesh(train.mesh, train.ranks).replica;
    const bool unequal = has_unequal_shares(spec_);
    if (train.global_batch % replicas != 0 && !unequal) {
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
    if (train.threads_mode == ThreadsMode::kBatch && train.threads > 0 && !unequal &&
        per_rank % train.threads != 0) {
      fail({"train.threads", "train.threads_mode", "train.global_batch"},
           "train.threads_mode = \"batch\" gives each thread an equal part, but the {} samples of a rank are "
           "not a multiple of train.threads = {}: use a train.global_batch that is a multiple of {}",
           per_rank, train.threads, train.threads * train.ranks);
    }
    if (spec_.data.samples > 0 && spec_.data.samples < train.ranks) {
      fail({"data.samples", "train.ranks"},
           "train.ranks = {} is more than data.samples = {}: each rank needs at least one sample; use fewer "
           "ranks",
           train.ranks, spec_.data.samples);
    }
    if (spec_.data.samples > 0 && spec_.data.samples < train.global_batch) {
      fail({"data.samples", "train.global_batch"},
           "data.samples = {} is less than train.global_batch = {} ({}): use more samples or a smaller batch",
           spec_.data.samples, train.global_batch, origin_text(origins_, "train.global_batch"));
    }
    if (cores_ > 0 && train.ranks > cores_) {
      warnings_.push_back(
          fmt::format("train.ranks = {} is more than the {} cores of this machine. Ranks that share cores "
                      "are slower than -n {}",
                      train.ranks, cores_, cores_));
    }
  }

  void length() {
    if (spec_.train.steps == 0 && spec_.train.epochs <= 0) {
      fail({"train.epochs", "train.steps"},
           "train.epochs and train.steps are both 0: give --epochs or --steps");
    }
  }

  void model() const {
    const ModelSpec& model = spec_.model;
    if (const auto fault = text_model_fault(model)) fail(fault->keys, "{}", fault->message);
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

  // Returns true if the program adds this kind of data. It may be of any form.
  bool is_added(std::string_view source) const {
    return find_added_source(spec_.extensions.get(), source.substr(0, source.find(':'))) != nullptr;
  }

  void source() {
    if (is_added(spec_.data.source) || is_added(test_source())) return;
    const bool text = check_source("data.source", spec_.data.source);
    const bool test_text =
        spec_.data.test_source.empty() ? text : check_source("data.test_source", test_source());
    // Only a data server knows what it serves. The run checks that when it has connected.
    if (is_served(spec_.data.source)) return;
    if (!is_served(test_source()) && test_text != text) {
      fail({"data.test_source", "data.source"},
           "data.test_source = \"{}\" is of another kind than data.source = \"{}\"", spec_.data.test_source,
           spec_.data.source);
    }
    const bool reads_text = spec_.model.reads_text();
    if (reads_text != text && spec_.model.name != kUserModel) {
      fail({"data.source", "model.name"},
           "model.name = \"{}\" trains on {}, but data.source = \"{}\" provides {}: use {}", spec_.model.name,
           reads_text ? "text" : "images", spec_.data.source, text ? "text" : "images",
           reads_text ? "grammar or text:FILE" : "digits, idx:DIR, cifar-bin:DIR or images:PATH");
    }
    if (text && spec_.data.augment) warnings_.push_back("data.augment has no effect on text");
  }

  static bool is_served(std::string_view source) { return source.starts_with("served:"); }

  // Returns data.test_source with its kind. A path without a kind has the kind of data.source, as in
  // data/source_factory.cc.
  std::string test_source() const {
    const std::string &test = spec_.data.test_source, &train = spec_.data.source;
    const bool has_kind = test.find(':') != std::string::npos || test == "digits" || test == "grammar";
    const size_t colon = train.find(':');
    return has_kind || colon == std::string::npos ? test : train.substr(0, colon + 1) + test;
  }

  // Returns whether a source is text. Throws ConfigError if it is not a source.
  bool check_source(std::string_view key, const std::string& source) const {
    static constexpr std::string_view kNames[] = {"idx",    "cifar-bin", "images", "text",
                                                  "served", "digits",    "grammar"};
    const size_t colon = source.find(':');
    const std::string name = source.substr(0, colon);
    const bool generated = name == "digits" || name == "grammar";
    if (std::find(std::begin(kNames), std::end(kNames), name) == std::end(kNames)) {
      std::vector<std::string> known(std::begin(kNames), std::end(kNames));
      std::string own;
      if (spec_.extensions != nullptr) {
        for (const auto& row : spec_.extensions->sources()) {
          known.push_back(row->prefix);
          own += row->usage + ", ";
        }
      }
      const std::string folder = source_of_folder(source);
      const std::string near = folder.empty() ? nearest(name, known) : folder;
      fail({key},
           "{} = \"{}\" is unknown: {}use {}idx:DIR, cifar-bin:DIR, images:PATH, text:FILE, "
           "served:HOST:PORT, digits or grammar",
           key, source, near.empty() ? "" : fmt::format("did you mean \"{}\"? ", near), own);
    }
    if (!generated && (colon == std::string::npos || colon + 1 == source.size())) {
      fail({key}, "{} = \"{}\" has no path: write {}:{}", key, source, name,
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
        fail({"schedule.milestones"}, "schedule.milestones = {} must be in ascending order",
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
    const auto needs = [&](bool asked, bool ExchangeTraits::* trait, std::string_view key, const char* what) {
      if (!asked || traits_.*trait) return;
      std::string can;
      for (const ExchangeTraits* row : exchanges_of(spec_))
        if (row->*trait) can += fmt::format("{}\"{}\"", can.empty() ? "" : " or ", row->name);
      fail({key, "exchange.name"}, "{} works with exchange.name = {} only, not with \"{}\"", what, can, name);
    };
    needs(spec_.train.threads_mode == ThreadsMode::kBatch, &ExchangeTraits::batch_threads,
          "train.threads_mode", "train.threads_mode = \"batch\"");
    needs(spec_.model.batch_norm == BatchNorm::kSync, &ExchangeTraits::sync_batch_norm, "model.batch_norm",
          "model.batch_norm = \"sync\" (every step, all ranks together)");
    if (spec_.optimizer.clip_norm > 0 && !traits_.clip_norm)
      fail({"optimizer.clip_norm", "exchange.name"}, "{} does not clip gradients: use --exchange {}", name,
           default_);
    if (const auto refusal = hogwild_refusal(spec_)) fail(refusal->keys, "{}", refusal->text);
    if (const auto refusal = optimizer_refusal(spec_, origins_)) fail(refusal->keys, "{}", refusal->text);
    if (exchange.graph == "one-peer" && traits_.reads("graph") && !traits_.directed)
      fail({"exchange.graph", "exchange.name"}, "{} has no graph one-peer: use --graph {}, or --exchange {}",
           name, traits_.pairs ? "ring" : "exponential",
           names_of([](const ExchangeTraits& e) { return e.directed; }));
    if (const auto refusal = pair_refusal(spec_)) fail(refusal->keys, "{}", refusal->text);
    if (const auto refusal = team_refusal(spec_)) fail(refusal->keys, "{}", refusal->text);
    if (exchange.outer_nesterov && exchange.block_momentum == 0 && traits_.reads("outer_nesterov"))
      fail({"exchange.outer_nesterov", "exchange.block_momentum"},
           "exchange.outer_nesterov needs a momentum: give --set exchange.block_momentum=0.9, as DiLoCo has, "
           "or "
           "leave out exchange.outer_nesterov");
    if (spec_.train.precision == Precision::kBf16 && !traits_.bf16)
      fail({"train.precision", "exchange.name"},
           "{} trains in fp32 or fp64: use --precision fp32, or --exchange {} for bf16", name, default_);
    unread();
    codecs();
    server();
    mesh();
    tensor();
    hybrid();
    shard();
    accumulation();
    if (const auto refusal = refused_device(spec_)) fail({refusal->key, "train.device"}, "{}", refusal->text);
    const Emulation emulation = parse_emulation(spec_.train.emulate);
    for (const auto& slow : emulation.slow_ranks) {
      if (slow.rank >= spec_.train.ranks)
        fail({"train.emulate", "train.ranks"},
             "train.emulate names rank {}, but the last of {} ranks is rank {}", slow.rank, spec_.train.ranks,
             spec_.train.ranks - 1);
    }
    if (emulation.shapes_links() && spec_.comm.engine != "starling")
      fail({"comm.engine", "train.emulate"},
           "link emulation works with Starling's own TCP, not with {}: use comm.engine=starling",
           spec_.comm.engine);
    partition();
    share();
    on_failure();
    engine();
  }

  // Refuses a setting of the command line that this run does not read. A file or a program may hold settings
  // for several ways to train.
  void unread() const {
    for (const SchemaEntry& entry : schema()) {
      if (!typed(entry.key) || reads_key(spec_, entry)) continue;
      if (entry.key == "train.accumulate") continue;  // accumulation() says why
      if (read(entry, spec_) == default_of(entry)) continue;
      if (table_of(entry) == "pipeline" && !has_stages(spec_))
        fail({entry.key}, "{0} has an effect only in a pipeline: give --mesh stage=S, or leave out {0}",
             entry.key);
      if (const std::string choice = choice_that_ignores(spec_, entry); !choice.empty())
        fail({entry.key}, "{} has no effect with {}: leave one of them out", entry.key, choice);
      const bool of_exchange = table_of(entry) == "exchange";
      const auto reads = [&](const ExchangeTraits& e) {
        return of_exchange ? e.reads(leaf_of(entry)) : e.buckets;
      };
      fail({entry.key}, "{} belongs to {}, not to \"{}\": leave it out, or give another --exchange",
           entry.key, names_of(reads), traits_.name);
    }
  }

  void engine() const {
    if (spec_.comm.engine != "mpi") return;
    const auto refuse = [&](bool asked, std::string_view key, std::string_view what) {
      if (asked) fail({"comm.engine", key}, "{} needs comm.engine = \"starling\", not \"mpi\"", what);
    };
    refuse(traits_.one_host, "exchange.name", "an exchange in the shared memory of one host");
    refuse(spec_.comm.algorithm != "auto", "comm.algorithm", "a named collective algorithm");
    refuse(spec_.comm.security != "none", "comm.security", "authenticated or encrypted data");
    refuse(parse_emulation(spec_.train.emulate).shapes_links(), "train.emulate", "an emulated link");
    refuse(spec_.train.on_failure == OnFailure::kContinue, "train.on_failure",
           "continuing without a lost rank");
    refuse(!spec_.launch.hosts.empty() || !spec_.launch.hostfile.empty(), "launch.hosts",
           "starting ranks by --hosts");
  }

  void on_failure() const {
    if (spec_.train.on_failure != OnFailure::kContinue) return;
    const auto only = [&](bool other, std::string_view key, const std::string& what) {
      if (other)
        fail(
            {"train.on_failure", key},
            "train.on_failure = \"continue\" works with {} on whole models, not with {}, because a lost rank "
            "may hold the only copy of some state: use \"stop\" and checkpoints",
            names_of([](const ExchangeTraits& e) { return e.survives_loss; }), what);
    };
    only(!has_whole_models(spec_), "train.mesh", "a model that is sharded over ranks");
    if (has_servers(spec_)) return;
    only(!traits_.survives_loss, "exchange.name", spec_.exchange.name);
    only(spec_.exchange.codec != "none", "exchange.codec", "--codec " + spec_.exchange.codec);
    only(spec_.train.shard != Shard::kNone, "train.shard", "train.shard");
    only(spec_.train.threads_mode == ThreadsMode::kLayer, "train.threads_mode", "threads_mode = \"layer\"");
    only(spec_.data.partition != "auto" && spec_.data.partition != "none", "data.partition",
         "samples that belong to one rank only");
  }

  void codecs() const {
    const ExchangeSpec& exchange = spec_.exchange;
    const std::string& name = exchange.name;
    if (exchange.codec != "none" && !traits_.codec)
      fail({"exchange.codec", "exchange.name"}, "exchange.codec does not apply to \"{}\". It works with {}",
           name, names_of([](const ExchangeTraits& e) { return e.codec; }));
    const std::string_view word = first_codec(exchange.codec);
    if (const CodecTraits* codec = find_codec(word, spec_)) {
      const bool servers = traits_.servers && !codec->servers;
      if (servers || (traits_.lockstep == Lockstep::kRounds && !codec->rounds))
        fail({"exchange.codec", "exchange.name"}, "--codec {} does not apply to \"{}\", because {}", word,
             name,
             servers ? "ranks have to decode each other's messages of a step: use another codec with servers"
                     : "it encodes gradients and no changes of weights: use --exchange all-reduce");
    }
    if (exchange.pull_codec != "none" && !traits_.reads("pull_codec"))
      fail({"exchange.pull_codec", "exchange.name"},
           "exchange.pull_codec compresses the weights that a server sends, but \"{}\" {}", name,
           traits_.servers ? "has no use for rounded ones: leave it out" : "has no servers");
    if (spec_.train.precision != Precision::kFp64) return;
    if (exchange.codec != "none" || exchange.pull_codec != "none")
      fail({"exchange.codec", "exchange.pull_codec", "train.precision"},
           "codecs compress fp32 values: use --precision fp32");
  }

  void server() const {
    const ExchangeSpec& exchange = spec_.exchange;
    const std::string& s = exchange.staleness;
    const bool number = !s.empty() && s.size() < 10 && s.find_first_not_of("0123456789") == std::string::npos;
    if (!number && s != "inf")
      fail({"exchange.staleness"}, "exchange.staleness = \"{}\" must be 0, a number of steps, or inf", s);
    if (exchange.backup > 0 && s != "0" && traits_.reads("backup"))
      fail({"exchange.backup", "exchange.staleness"}, "backup workers need --staleness 0, not {}", s);
    if (exchange.backup >= spec_.train.ranks && traits_.reads("backup"))
      fail({"exchange.backup", "train.ranks"},
           "{} backup workers of {} ranks leave no other worker: use fewer", exchange.backup,
           spec_.train.ranks);
    const auto weights = static_cast<int64_t>(exchange.worker_weights.size());
    if (weights > 0 && weights != spec_.train.ranks && traits_.reads("worker_weights"))
      fail({"exchange.worker_weights", "train.ranks"},
           "{} weights for {} workers: give one number per worker", weights, spec_.train.ranks);
    if (weights > 0 && s == "0" && traits_.lockstep == Lockstep::kByStaleness)
      fail({"exchange.worker_weights", "exchange.staleness"},
           "weights of workers need --staleness above 0 or inf: at 0 the gradients of a step are averaged");
  }

  void mesh() const {
    const MeshSpec mesh = parse_mesh(spec_.train.mesh, spec_.train.ranks);
    const bool layers = spec_.train.threads_mode == ThreadsMode::kLayer;
    if (mesh.replica < mesh.ranks() && traits_.reads("backup") && spec_.exchange.backup > 0)
      fail({"exchange.backup", "train.mesh"},
           "a backup worker is a complete replica, but here each worker has a part: leave out --backup");
    if (mesh.stage == 1 && !layers) {
      if (spec_.pipeline.activations != "none")
        fail({"pipeline.activations", "train.mesh"},
             "pipeline.activations compresses data between stages, but there are none: give --mesh "
             "stage=S, or leave out pipeline.activations");
      return;
    }
    if (layers && spec_.train.ranks > 1)
      fail({"train.threads_mode", "train.ranks"},
           "threads_mode = \"layer\" is a pipeline in one process: use -n 1, or --mesh stage=S");
    const std::string& name = spec_.exchange.name;
    const bool servers = !layers && has_servers(spec_);
    if (mesh.replica == 1 && !servers && (name != default_ || spec_.exchange.codec != "none"))
      fail({"exchange.name", "exchange.codec"},
           "{}, so replicas exchange nothing: leave out --exchange and --codec{}",
           layers ? "threads_mode = \"layer\" has one replica" : "this pipeline has one replica",
           layers ? "" : ", or add replica=R to --mesh");
    if (!layers && spec_.train.threads_mode != ThreadsMode::kOp)
      fail({"train.threads_mode", "train.mesh"},
           "a stage computes one micro-batch at a time: use --threads-mode op with --mesh stage");
    const int64_t share = spec_.train.global_batch / mesh.replica;
    if (share % spec_.pipeline.micro_batches != 0)
      fail({"pipeline.micro_batches", "train.global_batch"},
           "the {} samples of a step{} cannot be divided into {} micro-batches", share,
           mesh.replica > 1 ? " of a replica" : "", spec_.pipeline.micro_batches);
    const auto [steps, every] = std::pair(spec_.pipeline.calibration_steps, spec_.pipeline.recalibrate_every);
    if (spec_.pipeline.activations == kCalibratedInt8 && every > 0 && every <= steps)
      fail({"pipeline.recalibrate_every", "pipeline.calibration_steps"},
           "{} calibration steps in every {} steps leave no step in which activations are compressed: use a "
           "larger pipeline.recalibrate_every, or 0 to calibrate once",
           steps, every);
  }

  // Checks what does not work with tensor parallelism.
  void tensor() const {
    const MeshSpec mesh = parse_mesh(spec_.train.mesh, spec_.train.ranks);
    if (mesh.tensor == 1) return;
    const ModelSpec& model = spec_.model;
    if (const auto fault = tensor_axis_fault(model, mesh.tensor)) fail(fault->keys, "{}", fault->message);
    if (model.dropout > 0)
      fail({"model.dropout", "train.mesh"},
           "in sharded layers, the dropout masks of the ranks differ from the mask of one process: leave out "
           "model.dropout or the tensor axis");
    if (traits_.servers && mesh.stage > 1)
      fail({"exchange.name", "train.mesh"},
           "with servers, stages or layers are divided among ranks, not both: leave out one of the axes");
    if (spec_.exchange.codec != "none" || spec_.exchange.pull_codec != "none")
      fail({"exchange.codec", "exchange.pull_codec", "train.mesh"},
           "a codec computes its blocks and scales per rank, so copies on the ranks of a tensor axis would "
           "differ: leave out --{}",
           spec_.exchange.codec != "none" ? "codec" : "pull-codec");
    if (spec_.train.threads_mode != ThreadsMode::kOp)
      fail({"train.threads_mode", "train.mesh"},
           "the ranks of a tensor axis compute each batch together: use --threads-mode op");
  }

  void hybrid() const {
    if (spec_.train.hybrid == "none") return;
    const auto only = [&](bool other, std::string_view key, const char* remedy) {
      if (other) fail({key, "train.hybrid"}, "train.hybrid is synchronous SGD over all ranks: {}", remedy);
    };
    const MeshSpec mesh = parse_mesh(spec_.train.mesh, spec_.train.ranks);
    only(mesh.replica != mesh.ranks(), "train.mesh", "leave out --mesh");
    only(!traits_.shards, "exchange.name", "leave out --exchange");
    only(spec_.exchange.codec != "none", "exchange.codec", "leave out --codec");
    only(spec_.train.shard != Shard::kNone, "train.shard", "leave out --shard");
    only(spec_.train.threads_mode != ThreadsMode::kOp, "train.threads_mode", "use --threads-mode op");
    only(spec_.optimizer.share == OptimizerShare::kSharded, "optimizer.share", "leave out optimizer.share");
  }

  void shard() const {
    if (spec_.train.shard == Shard::kNone) return;
    if (!traits_.shards)
      fail({"train.shard", "exchange.name"},
           "train.shard works with synchronous SGD only: leave out --exchange {}", spec_.exchange.name);
    if (const auto refusal = sharded_codec_refusal(spec_)) fail(refusal->keys, "{}", refusal->text);
    const MeshSpec mesh = parse_mesh(spec_.train.mesh, spec_.train.ranks);
    if (mesh.stage > 1 && mesh.replica == 1)
      fail({"train.shard", "train.mesh"},
           "train.shard divides states among replicas, but each stage of this pipeline has one replica: "
           "leave out --shard, or add replica=R to --mesh");
    if (mesh.stage > 1 && spec_.train.shard == Shard::kParameters)
      fail({"train.shard", "train.mesh"},
           "--shard parameters gathers the model block by block, but a pipeline needs all blocks of a "
           "stage for every micro-batch: use --shard gradients");
    if (spec_.train.threads_mode != ThreadsMode::kOp)
      fail({"train.shard", "train.threads_mode"}, "train.shard works with --threads-mode op only");
    if (spec_.optimizer.share != OptimizerShare::kAuto)
      fail({"optimizer.share", "train.shard"},
           "with train.shard, every rank updates its own shard: leave out optimizer.share");
  }

  // Checks the parts of a step. All ranks that compute together have equally many.
  void accumulation() const {
    const int64_t parts = spec_.train.accumulate;
    if (parts == 1) return;
    const MeshSpec mesh = parse_mesh(spec_.train.mesh, spec_.train.ranks);
    if (mesh.stage > 1 || spec_.train.threads_mode == ThreadsMode::kLayer)
      fail({"train.accumulate", "train.mesh"},
           "a pipeline computes its batch in parts already: use --micro-batches instead of --accumulate");
    if (spec_.train.hybrid != "none")
      fail({"train.accumulate", "train.hybrid"},
           "a hybrid exchanges the activations of the whole batch: leave out --accumulate");
    const bool split = spec_.train.threads_mode == ThreadsMode::kBatch;
    const int64_t threads = split ? std::max<int64_t>(1, spec_.train.threads) : 1;
    const int64_t share = spec_.train.global_batch / mesh.replica / threads;
    if (share < parts)
      fail({"train.accumulate", "train.global_batch"},
           "the {} samples that a {} computes in a step cannot be cut into {} parts: use at most {}", share,
           threads > 1 ? "thread" : "rank", parts, share);
  }

  void partition() const {
    const std::string& kind = spec_.data.partition;
    const bool known = kind == "auto" || kind == "none" || kind == "iid" || kind == "by-label" ||
                       std::string_view(kind).starts_with("dirichlet=");
    if (!known)
      fail({"data.partition"},
           "data.partition = \"{}\" is unknown: use auto, none, iid, by-label or dirichlet=A", kind);
    if (kind == "none" && traits_.own_samples)
      fail({"data.partition", "exchange.name"},
           "{} needs samples that belong to one rank only: use --partition iid", spec_.exchange.name);
    const bool by_class = kind == "by-label" || std::string_view(kind).starts_with("dirichlet=");
    if (by_class && spec_.model.reads_text())
      fail({"data.partition", "model.name"}, "text has no classes: use --partition iid");
  }

  // Checks data.share, which divides each batch among ranks whose gradients are averaged in every step.
  void share() const {
    if (!has_unequal_shares(spec_)) return;
    const BatchShare share = parse_batch_share(spec_.data.share);
    const auto only = [&](bool other, std::string_view key, const std::string& what) {
      if (other)
        fail({"data.share", key},
             "data.share divides each batch among ranks that average their gradients in every step, so it "
             "does not apply to {}: leave out --share, or use --exchange {} on whole models",
             what, names_of([](const ExchangeTraits& e) { return e.unequal_shares; }));
    };
    only(!traits_.unequal_shares, "exchange.name", spec_.exchange.name);
    const MeshSpec mesh = parse_mesh(spec_.train.mesh, spec_.train.ranks);
    only(mesh.stage > 1, "train.mesh", "the stages of a pipeline");
    only(mesh.tensor > 1, "train.mesh", "a tensor axis");
    only(spec_.train.threads_mode == ThreadsMode::kLayer, "train.threads_mode", "threads_mode = \"layer\"");
    only(spec_.train.hybrid != "none", "train.hybrid", "a hybrid");
    only(spec_.data.partition != "auto" && spec_.data.partition != "none", "data.partition",
         "samples that belong to one rank only");
    if (share.measured && spec_.model.batch_norm == BatchNorm::kSync)
      fail({"data.share", "model.batch_norm"},
           "auto measures the computation of each rank, but with model.batch_norm = \"sync\" the ranks wait "
           "for each other while they compute: give a list, such as --share 2,1");
    const auto given = std::ssize(share.parts);
    if (!share.measured && given != spec_.train.ranks)
      fail({"data.share", "train.ranks"},
           "data.share has {} part{} for {} rank{}: give one number for each rank", given,
           given == 1 ? "" : "s", spec_.train.ranks, spec_.train.ranks == 1 ? "" : "s");
    const int64_t least = least_samples(spec_);
    if (spec_.train.global_batch < least * spec_.train.ranks)
      fail({"train.global_batch", "data.share", "train.ranks"},
           "each of the {} ranks needs at least {} sample{} of a step, but train.global_batch = {}: use a "
           "batch of {} or more",
           spec_.train.ranks, least, least == 1 ? "" : "s", spec_.train.global_batch,
           least * spec_.train.ranks);
  }

  void files() const {
    static constexpr std::string_view kEnds[] = {".safetensors", ".safetensors.index.json", ".pt", ".pth"};
    const std::string& save = spec_.train.save;
    const auto ends = [&](std::string_view end) { return save.ends_with(end); };
    if (!save.empty() && std::none_of(std::begin(kEnds), std::end(kEnds), ends)) {
      fail({"train.save"},
           "train.save = \"{}\" must end in .safetensors, in .pt or .pth for torch.load, or in "
           ".safetensors.index.json for several files",
           save);
    }
  }

  const RunSpec& spec_;
  const Origins& origins_;
  const int cores_;
  const ExchangeTraits& traits_;
  const std::string_view default_ = exchange_table().front().name;  // of exchange.name
  std::vector<std::string> warnings_;
};

}  // namespace

std::vector<std::string> validate(const RunSpec& spec, const Origins& origins, int cores) {
  return Validator(spec, origins, cores).run();
}

}  // namespace starling
