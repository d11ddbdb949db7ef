#include "apps/starling/solver.h"

#include <unistd.h>

#include "starling/launch/environment.h"
#include "starling/spec/hosts.h"

namespace starling {

void count_solver_ranks(Config& config) {
  if (read_environment(::environ).identity.origin != ProcessOrigin::kAlone) return;
  if (!is_given(config.origins, "train.ranks")) config.spec.train.ranks = kUsualRanks;
  count_ranks(config);
}

FlagChoice solver_flags(std::vector<std::string_view> keys) {
  keys.emplace_back("train.seed");
  return {.sections = {Section::kRanks, Section::kNetwork},
          .keys = std::move(keys),
          .left_out = {"train.threads_mode", "train.device"},
          .defaults = {{"train.ranks", "2"}},
          .meanings = {{"train.ranks", "Number of processes that share the work."},
                       {"train.seed", "Seed of all random numbers of the command."}}};
}

}  // namespace starling
