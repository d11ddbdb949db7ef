#include "starling/server/server_options.h"

#include <fmt/format.h>

#include <cmath>

#include "starling/base/error.h"
#include "starling/spec/mesh.h"
#include "starling/spec/on_failure.h"
#include "starling/spec/strategy_table.h"

namespace starling {

ServerOptions server_options(const RunSpec& spec) {
  ServerOptions options;
  const ExchangeSpec& exchange = spec.exchange;
  const ExchangeTraits& traits = exchange_traits(spec);
  options.optimizer = spec.optimizer;
  options.workers = static_cast<int>(spec.train.ranks);
  if (traits.reads("backup")) options.backup = static_cast<int>(exchange.backup);
  options.fixed_order = exchange.reduction_order == "fixed";
  options.push_codec = codec_of(spec);
  options.pull_codec = parse_weight_codec(exchange.pull_codec, "--pull-codec", spec.extensions.get());
  if (traits.lockstep == Lockstep::kNever || exchange.staleness == "inf") {
    options.staleness.reset();
  } else {
    options.staleness = std::stoll(exchange.staleness);
  }
  options.weight_by_staleness = exchange.staleness_weight && !options.synchronous();
  options.pulls_every_push = !traits.reads("fetch_every") || exchange.fetch_every == 1;
  options.redo_after_loss = goes_on_after_loss(spec) && options.synchronous() && options.backup == 0 &&
                            exchange.servers == 1 && options.push_codec.kind == CodecKind::kNone;
  // One push of every replica amounts to one synchronous step. Each rank of a replica pushes its part.
  const MeshSpec mesh = parse_mesh(spec.train.mesh, spec.train.ranks);
  if (!options.synchronous() && mesh.replica < mesh.ranks())
    options.lambda.assign(options.workers, 1.0 / static_cast<double>(mesh.replica));
  if (traits.reads("warm_start"))
    options.warm_updates = (exchange.warm_start + exchange.push_every - 1) / exchange.push_every;
  options.warm_workers = static_cast<int>(mesh.ranks() / mesh.replica);
  if (!exchange.worker_weights.empty()) options.lambda = exchange.worker_weights;
  if (traits.center) make_center(options);
  return options;
}

void make_center(ServerOptions& options) {
  options.optimizer = OptimizerSpec();
  options.optimizer.momentum = 0;
  options.staleness.reset();
  options.lambda.assign(options.workers, 1.0);
  options.weight_by_staleness = false;
}

void check_server_options(const ServerOptions& o) {
  if (o.workers < 1) throw ConfigError("--exchange parameter-server", "needs at least one worker (-n)");
  if (o.staleness && *o.staleness < 0) {
    throw ConfigError(
        "--staleness",
        fmt::format("{} is no staleness; give 0 (synchronous), a larger number, or inf", *o.staleness));
  }
  if (o.backup < 0)
    throw ConfigError("--backup", fmt::format("{} is no number of backup workers; give 0 or more", o.backup));
  if (o.backup >= o.workers) {
    throw ConfigError(
        "--backup",
        fmt::format("{} backup workers leave no worker whose gradient counts, because there are {} "
                    "workers; give 0 to {}",
                    o.backup, o.workers, o.workers - 1));
  }
  if (o.backup > 0 && !o.synchronous()) throw ConfigError("--backup", "backup workers require --staleness 0");
  if (o.synchronous() && (!o.lambda.empty() || o.weight_by_staleness)) {
    throw ConfigError("exchange.worker_weights",
                      "weights of workers and of staleness require --staleness above 0 or inf; at 0 the "
                      "gradients of a clock are averaged");
  }
  if (!o.lambda.empty() && o.lambda.size() != static_cast<size_t>(o.workers)) {
    throw ConfigError("exchange.worker_weights", fmt::format("{} weights for {} workers; give one per worker",
                                                             o.lambda.size(), o.workers));
  }
  if (o.warm_updates < 0 || (o.warm_updates > 0 && o.staleness)) {
    throw ConfigError("exchange.warm_start",
                      fmt::format("a warm start of {} updates is not possible; give 0 or more, with "
                                  "asynchronous servers (--exchange downpour)",
                                  o.warm_updates));
  }
  for (const double l : o.lambda) {
    if (!(l > 0) || !std::isfinite(l))
      throw ConfigError("exchange.worker_weights", fmt::format("{} is no weight; give numbers above 0", l));
  }
}

}  // namespace starling
