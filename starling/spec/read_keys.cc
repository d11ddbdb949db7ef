#include "starling/spec/read_keys.h"

#include <fmt/format.h>

#include "starling/spec/enum_words.h"
#include "starling/spec/mesh.h"
#include "starling/spec/strategy_table.h"

namespace starling {

bool has_stages(const RunSpec& spec) {
  return spec.train.threads_mode == ThreadsMode::kLayer ||
         parse_mesh(spec.train.mesh, spec.train.ranks).stage > 1;
}

std::string choice_that_ignores(const RunSpec& spec, const SchemaEntry& entry) {
  const ExchangeTraits& exchange = exchange_traits(spec);
  const std::string_view key = entry.key;
  if (exchange.lockstep == Lockstep::kByStaleness) {
    const bool ignored = key == "exchange.reduction_order"    ? !in_lockstep(spec)
                         : key == "exchange.staleness_weight" ? in_lockstep(spec)
                                                              : false;
    if (ignored) return "--staleness " + spec.exchange.staleness;
  }
  const MeshSpec mesh = parse_mesh(spec.train.mesh, spec.train.ranks);
  if (key == "exchange.warm_start" && exchange.reads("warm_start") && mesh.replica == 1)
    return spec.train.mesh.empty() ? "-n 1" : "--mesh " + spec.train.mesh;
  const bool hash = key == "train.hash_every" && spec.train.hash_every > 0 && mesh.tensor == 1;
  const bool of_buckets = hash || key == "train.bucket_mb" || key == "optimizer.share";
  const bool shards = spec.train.shard != Shard::kNone;
  const bool hogwild = spec.train.threads_mode == ThreadsMode::kHogwild;
  const bool of_threads = key == "train.hogwild" || key == "train.thread_updates";
  if ((of_threads && !hogwild) || (exchange.buckets && of_buckets && hogwild))
    return "--threads-mode " + to_string(spec.train.threads_mode);
  if (exchange.buckets && of_buckets) {
    if (spec.exchange.codec != "none" && !shards) return "--codec " + spec.exchange.codec;
    if (spec.train.threads_mode == ThreadsMode::kLayer) return "--threads-mode layer";
    if (mesh.stage > 1 && mesh.replica == 1) return "--mesh " + spec.train.mesh;
  }
  if (spec.train.hybrid != "none" &&
      (hash || key == "train.bucket_mb" ||
       (key == "optimizer.share" && spec.optimizer.share != OptimizerShare::kSharded)))
    return "--hybrid " + spec.train.hybrid;
  if (exchange.buckets && of_buckets && spec.optimizer.clip_value > 0 && !shards)
    return "optimizer.clip_value";
  const bool by_norm = spec.optimizer.name == "lars" || spec.optimizer.name == "lamb";
  if (exchange.buckets && of_buckets && by_norm && !shards) return "--optimizer " + spec.optimizer.name;
  // Starling's loop shards parameters block by block. A loop of the program's own shards them in buckets, and
  // it is not known here which of the two a program has.
  if (spec.train.shard == Shard::kParameters && key == "train.bucket_mb" && spec.model.name != kUserModel)
    return "--shard parameters";
  if (key == "exchange.every" && exchange.reads("rounds") && spec.exchange.rounds > 0)
    return fmt::format("--rounds {}", spec.exchange.rounds);
  if (shards && hash) return "--shard " + to_string(spec.train.shard);
  if (key == "pipeline.chunks" && has_stages(spec) && spec.pipeline.schedule != "interleaved")
    return "--schedule " + spec.pipeline.schedule;
  const bool calibrates = key == "pipeline.calibration_steps" || key == "pipeline.recalibrate_every" ||
                          key == "pipeline.saturation_limit" || key == "pipeline.percentile";
  if (calibrates && has_stages(spec) && spec.pipeline.activations != kCalibratedInt8)
    return "pipeline.activations=" + spec.pipeline.activations;
  return "";
}

bool reads_key(const RunSpec& spec, const SchemaEntry& entry) {
  const ExchangeTraits& exchange = exchange_traits(spec);
  if (!choice_that_ignores(spec, entry).empty()) return false;
  if (table_of(entry) == "exchange" && leaf_of(entry) != "name") return exchange.reads(leaf_of(entry));
  if (entry.key == "train.bucket_mb" || entry.key == "optimizer.share") return exchange.buckets;
  if (entry.key == "train.hash_every")
    return exchange.buckets || spec.train.hash_every == 0 ||
           parse_mesh(spec.train.mesh, spec.train.ranks).tensor > 1;
  if (table_of(entry) == "pipeline") return has_stages(spec);
  return entry.key != "train.accumulate" || (!has_stages(spec) && spec.train.hybrid == "none");
}

}  // namespace starling
