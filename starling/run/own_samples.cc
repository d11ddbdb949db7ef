#include "starling/run/own_samples.h"

#include <algorithm>
#include <random>
#include <string>
#include <string_view>

#include "starling/data/partition.h"
#include "starling/data/served_key.h"
#include "starling/data/served_loader.h"
#include "starling/run/training.h"

namespace starling {
namespace {

constexpr std::string_view kServed = "served:";

// The ranks take their steps at different times, and none waits for all others.
bool is_asynchronous(const ExchangeSpec& exchange) {
  return exchange.name == "downpour" || (exchange.name == "parameter-server" && exchange.staleness != "0");
}

std::unique_ptr<Loader> leased_loader(const RunSpec& spec, const OwnSamples& own, Group& group,
                                      int64_t first_step) {
  const ServedPlace place = parse_served(spec.data.source.substr(kServed.size()));
  std::random_device random;
  uint64_t job = (uint64_t{random()} << 32) ^ random();
  if (group.size() > 1) group.broadcast(&job, 1, DataType::kInt64, 0);
  const JobIdentity identity = served_identity(place, security_named(spec.comm.security));
  auto tickets = std::make_unique<TicketStream>(place.address, identity, job, first_step * group.size());
  return make_leased_loader(own.source, loader_options(spec, group.rank(), group.size(), first_step),
                            std::move(tickets));
}

std::string partition_kind(const RunSpec& spec) {
  if (spec.data.partition != "auto") return spec.data.partition;
  return spec.exchange.name == "parallel-sgd" || spec.exchange.name == "admm" ? "iid" : "none";
}

// What member `place` of so many takes of a lost rank's samples.
void take_part(const std::vector<int64_t>& lost, int64_t place, int64_t places, std::vector<int64_t>& into) {
  const auto size = static_cast<int64_t>(lost.size());
  into.insert(into.end(), lost.begin() + size * place / places, lost.begin() + size * (place + 1) / places);
}

}  // namespace

OwnSamples own_samples(const RunSpec& spec, const DataSets& data, const MeshGroups& axes,
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
  if (spec.exchange.name == "parallel-sgd") {
    own.shuffle = shuffle_samples(group, clock, *own.source, spec.train.seed);
    own.source = own.shuffle.samples;
  }
  return own;
}

std::unique_ptr<Loader> loader_of(const RunSpec& spec, const OwnSamples& own, int rank,
                                  const std::vector<int>& members, int64_t first_step) {
  const auto places = static_cast<int>(members.size());
  const auto place =
      static_cast<int>(std::lower_bound(members.begin(), members.end(), rank) - members.begin());
  if (own.parts.empty()) {
    LoaderOptions options = loader_options(spec, place, places, first_step);
    options.unequal = places < own.replicas;
    return make_loader(own.source, options);
  }
  LoaderOptions options = loader_options(spec, 0, 1, first_step);
  options.global_batch = spec.train.global_batch / places;
  if (places == own.replicas) return make_loader(own.source, options);
  std::vector<int64_t> indices = own.parts.at(rank);
  for (int r = 0; r < static_cast<int>(own.parts.size()); ++r) {
    if (!std::binary_search(members.begin(), members.end(), r))
      take_part(own.parts[r], place, places, indices);
  }
  return make_loader(subset_of(own.all, std::move(indices)), options);
}

bool takes_leases(const RunSpec& spec, const OwnSamples& own) {
  const bool all_replicas =
      own.replicas == spec.train.ranks;  // ranks that share a replica read the same samples
  return std::string_view(spec.data.source).starts_with(kServed) && all_replicas && own.parts.empty() &&
         is_asynchronous(spec.exchange);
}

std::unique_ptr<Loader> first_loader(const RunSpec& spec, const OwnSamples& own, Group& replicas, int rank,
                                     const std::vector<int>& members, int64_t first_step) {
  if (takes_leases(spec, own)) return leased_loader(spec, own, replicas, first_step);
  return loader_of(spec, own, rank, members, first_step);
}

}  // namespace starling
