#include "starling/run/loop/own_samples.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <string_view>

#include "starling/base/error.h"
#include "starling/data/sample_partition.h"
#include "starling/data/served/served_key.h"
#include "starling/data/served/served_loader.h"
#include "starling/run/choice/share_measurement.h"
#include "starling/run/training.h"
#include "starling/spec/batch_share.h"
#include "starling/spec/on_failure.h"
#include "starling/spec/strategy_table.h"
#include "starling/train/trainer.h"

namespace starling {
namespace {

constexpr std::string_view kServed = "served:";

// Returns true if the ranks take their steps at different times and no rank waits for all other ranks.
bool is_asynchronous(const RunSpec& spec) {
  return has_servers(spec) && !in_lockstep(spec);
}

std::unique_ptr<Loader> leased_loader(const RunSpec& spec, const OwnSamples& own, Group& group,
                                      int64_t first_step) {
  const ServedPlace place = parse_served(spec.data.source.substr(kServed.size()));
  std::random_device random;
  uint64_t job = (uint64_t{random()} << 32) ^ random();
  if (group.size() > 1) broadcast(group, &job, 1, DataType::kInt64, 0);
  const JobIdentity identity = served_identity(place, security_named(spec.comm.security));
  auto tickets = std::make_unique<TicketStream>(place.address, identity, job, first_step * group.size());
  return make_leased_loader(own.source, loader_options(spec, group.rank(), group.size(), first_step),
                            std::move(tickets));
}

std::string partition_kind(const RunSpec& spec) {
  if (spec.data.partition != "auto") return spec.data.partition;
  return exchange_traits(spec).own_samples ? "iid" : "none";
}

// Appends to `into` what member `place` of `places` takes of a lost rank's samples.
void take_part(const std::vector<int64_t>& lost, int64_t place, int64_t places, std::vector<int64_t>& into) {
  const auto size = static_cast<int64_t>(lost.size());
  into.insert(into.end(), lost.begin() + size * place / places, lost.begin() + size * (place + 1) / places);
}

// Takes the last samples of own.source out of the training. There are as many as in a rank's mini-batch, but
// at most a tenth of the samples.
void hold_out(const RunSpec& spec, OwnSamples& own) {
  const int64_t size = own.source->size();
  const int64_t count = std::min(std::max<int64_t>(1, spec.train.global_batch / own.replicas), size / 10);
  if (count < 1)
    throw ConfigError(
        "exchange.combine",
        fmt::format("best holds out up to a tenth of each rank's samples, but a rank has {} samples and "
                    "needs 10; use --combine average",
                    size));
  std::vector<int64_t> indices(static_cast<size_t>(size));
  std::iota(indices.begin(), indices.end(), int64_t{0});
  own.held_out = own.source->read({indices.end() - count, indices.end()}, 0);
  indices.resize(static_cast<size_t>(size - count));
  own.source = subset_of(own.source, std::move(indices));
}

OwnSamples divided_samples(const RunSpec& spec, const DataSets& data, const MeshGroups& axes,
                           const Clock& clock) {
  OwnSamples own;
  own.all = own.source = data.train;
  const std::string kind = partition_kind(spec);
  Group& group = axes.replicas();
  own.replicas = group.size();
  if (kind == "none" || group.size() == 1) return own;
  const std::vector<int64_t> labels =
      kind == "iid" ? std::vector<int64_t>(data.train->size()) : labels_of(*data.train);
  own.parts = partition_samples(labels, group.size(), kind, spec.train.seed);
  own.source = subset_of(data.train, own.parts.at(group.rank()));
  if (exchange_traits(spec).shuffles_samples) {
    own.shuffle = shuffle_samples(group, clock, *own.source, spec.train.seed);
    own.source = own.shuffle.samples;
  }
  return own;
}

}  // namespace

OwnSamples own_samples(const RunSpec& spec, const DataSets& data, const MeshGroups& axes,
                       const RunEnvironment& environment) {
  OwnSamples own = divided_samples(spec, data, axes, environment.process.clock);
  own.on_stall = [&sink = environment.process.sink, rank = environment.world_rank()](const ReadStall& stall) {
    sink.emit(Message{Severity::kWarning, rank, stall_text(rank, stall)});
  };
  if (exchange_traits(spec).shuffles_samples && spec.exchange.combine == "best") hold_out(spec, own);
  return own;
}

std::map<std::string, double> with_shuffle(std::map<std::string, double> stats, const OwnSamples& own,
                                           Group& group, double run_s) {
  if (!own.shuffle.samples) return stats;
  double sums[2] = {static_cast<double>(own.shuffle.moved), static_cast<double>(own.shuffle.bytes)};
  all_reduce(group, sums, 2, DataType::kFp64, ReduceOp::kSum);
  stats["samples_moved"] = sums[0];
  stats["shuffle_bytes"] = sums[1];
  stats["shuffle_s"] = own.shuffle.seconds;
  stats["shuffle_share"] = own.shuffle.seconds / (own.shuffle.seconds + run_s);
  return stats;
}

std::unique_ptr<Loader> loader_of(const RunSpec& spec, const OwnSamples& own, int rank,
                                  const std::vector<int>& remaining, int64_t first_step) {
  const auto places = static_cast<int>(remaining.size());
  const auto place =
      static_cast<int>(std::lower_bound(remaining.begin(), remaining.end(), rank) - remaining.begin());
  if (own.parts.empty()) {
    LoaderOptions options = loader_options(spec, place, places, first_step);
    options.unequal = places < own.replicas || has_unequal_shares(spec);
    options.parts = parts_of_remaining(own.shares, remaining);
    options.least = least_samples(spec);
    options.total_steps = train_length(spec, *own.all).total_steps;
    options.on_stall = own.on_stall;
    return make_loader(own.source, options);
  }
  LoaderOptions options = loader_options(spec, 0, 1, first_step);
  options.global_batch = spec.train.global_batch / places;
  options.total_steps = train_length(spec, *own.all).total_steps;
  options.on_stall = own.on_stall;
  if (places == own.replicas) return make_loader(own.source, options);
  std::vector<int64_t> indices = own.parts.at(rank);
  for (int r = 0; r < static_cast<int>(own.parts.size()); ++r) {
    if (!std::binary_search(remaining.begin(), remaining.end(), r))
      take_part(own.parts[r], place, places, indices);
  }
  return make_loader(subset_of(own.all, std::move(indices)), options);
}

bool takes_leases(const RunSpec& spec, const OwnSamples& own) {
  // Ranks that share a replica read the same samples.
  const bool all_replicas = own.replicas == spec.train.ranks;
  return std::string_view(spec.data.source).starts_with(kServed) && all_replicas && own.parts.empty() &&
         is_asynchronous(spec);
}

std::unique_ptr<Loader> first_loader(const RunSpec& spec, const OwnSamples& own, Group& replicas, int rank,
                                     const std::vector<int>& remaining, int64_t first_step) {
  if (takes_leases(spec, own)) return leased_loader(spec, own, replicas, first_step);
  return loader_of(spec, own, rank, remaining, first_step);
}

}  // namespace starling
