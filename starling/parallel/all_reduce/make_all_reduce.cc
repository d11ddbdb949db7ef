// The maker of the exchange "all-reduce", without a codec (all_reduce/all_reduce.h) or with one
// (parallel/compressed_sgd.h). If a rank is alone and its threads have no locks, parallel/hogwild.h trains
// it.
#include <memory>

#include "starling/parallel/all_reduce/all_reduce.h"
#include "starling/parallel/all_reduce/mean_gradient.h"
#include "starling/parallel/compressed_sgd.h"
#include "starling/parallel/exchange_parts.h"
#include "starling/parallel/hogwild.h"
#include "starling/spec/codec_table.h"
#include "starling/spec/on_failure.h"
#include "starling/spec/optimizer_refusal.h"

namespace starling {

AllReduceOptions all_reduce_options(const RunSpec& spec, const FlatReplicaOptions& replica) {
  AllReduceOptions options;
  options.master = replica.master;
  options.working = replica.working;
  options.clip_norm = replica.clip_norm;
  options.channels_last = replica.channels_last;
  options.seed = replica.seed;
  options.accumulate = replica.accumulate;
  options.parts = replica.parts;
  options.global_batch = replica.global_batch;
  options.share = spec.optimizer.share;
  options.bucket_bytes = static_cast<size_t>(spec.train.bucket_mb * (1 << 20));
  options.hash_every = spec.train.hash_every;
  options.threads = spec.train.threads_mode == ThreadsMode::kBatch ? static_cast<int>(spec.train.threads) : 1;
  return options;
}

CompressedSgd::Correction correction_of(const RunSpec& spec, const CodecSpec& codec) {
  if (!codec.momentum_correction || spec.optimizer.name != "sgd") return {};
  if (!traits_of(codec).factor_masking) return {spec.optimizer.momentum};
  return {spec.optimizer.momentum, spec.optimizer.weight_decay, spec.optimizer.exempt_vectors};
}

std::unique_ptr<Strategy> make_all_reduce(const ExchangeParts& parts) {
  const RunSpec& spec = parts.spec;
  if (parts.replica.hogwild.threads > 0) return make_hogwild(parts);
  if (spec.exchange.codec != "none") {
    const CodecSpec codec = codec_of(spec);
    CompressedSgd::Correction correction = correction_of(spec, codec);
    if (parts.replica.optimizer) correction = {};
    OptimizerSpec optimizer = spec.optimizer;
    if (correction.momentum > 0) optimizer.momentum = 0;
    if (correction.momentum > 0 && correction.weight_decay > 0) optimizer.weight_decay = 0;
    return std::make_unique<CompressedSgd>(parts.factory, make_update_rule(optimizer), parts.replica, codec,
                                           correction, parts.group, parts.clock);
  }
  const UpdateRule rule = make_update_rule(spec.optimizer);
  if (parts.replica.optimizer || parts.replica.clip_value > 0 || has_rates_of_tensors(spec.optimizer))
    return std::make_unique<MeanGradient>(parts.factory, rule, parts.replica, parts.group, parts.clock);
  AllReduceOptions options = all_reduce_options(spec, parts.replica);
  options.on_bucket = parts.on_bucket;
  options.transactional = goes_on_after_loss(spec);
  if (options.transactional && parts.group.size() < spec.train.ranks)
    options.global_batch = spec.train.global_batch;
  return std::make_unique<AllReduce>(parts.factory, rule, options, parts.group, parts.clock);
}

}  // namespace starling
