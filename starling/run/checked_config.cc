#include "starling/run/checked_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <thread>

#include "starling/run/session.h"
#include "starling/spec/hosts.h"
#include "starling/spec/recipes.h"
#include "starling/spec/validate.h"

namespace starling {

namespace {

// Makes the batch that nobody has given a multiple of the ranks: 64 samples become 63 for 3 ranks.
void share_default_batch(Config& config) {
  TrainSpec& train = config.spec.train;
  if (is_given(config.origins, "train.global_batch") || !train.mesh.empty() || train.ranks < 1) return;
  train.global_batch = nearest_batch(train.global_batch, train.ranks);
}

}  // namespace

Config checked_config(Config config, const Environment& environment, const ConfigUse& use, int verbosity) {
  const ProcessIdentity& self = environment.identity;
  if (use.launches && self.origin == ProcessOrigin::kAlone) count_ranks(config);
  // In a rank that a launcher started, the world size replaces -n.
  if (use.launches && self.origin != ProcessOrigin::kAlone) {
    config.spec.train.ranks = std::max<int64_t>(1, self.world_size - servers_of(config.spec));
    apply_recipes(config);
  }
  if (!use.trains) config.spec.train.global_batch = config.spec.train.ranks;
  share_default_batch(config);
  // Our launcher warns if it starts more ranks than there are cores, and it has printed the other warnings.
  // The ranks of other launchers may be on other hosts.
  const int cores = use.launches ? 0 : static_cast<int>(std::thread::hardware_concurrency());
  const bool silent = verbosity < 0 || self.rank > 0 || self.origin == ProcessOrigin::kLauncher;
  std::vector<std::string> warnings = validate(config.spec, config.origins, cores);
  if (const auto rate = use.trains ? rate_warning(config) : std::nullopt) warnings.push_back(*rate);
  for (const std::string& warning : warnings) {
    if (!silent) fmt::print(stderr, "starling: warning: {}\n", warning);
  }
  return config;
}

}  // namespace starling
