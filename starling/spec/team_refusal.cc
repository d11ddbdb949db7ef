#include "starling/spec/team_refusal.h"

#include <fmt/format.h>

#include "starling/spec/mesh.h"
#include "starling/spec/on_failure.h"
#include "starling/spec/strategy_table.h"

namespace starling {

std::optional<Refusal> team_refusal(const RunSpec& spec) {
  const int64_t team = spec.exchange.team;
  if (team == 1 || !exchange_traits(spec).reads("team")) return std::nullopt;
  if (spec.train.ranks % team != 0)
    return Refusal{{"exchange.team", "train.ranks"},
                   fmt::format("{} ranks cannot be divided into teams of {}: use a divisor of {}",
                               spec.train.ranks, team, spec.train.ranks)};
  if (!in_lockstep(spec))
    return Refusal{{"exchange.team", "exchange.staleness"},
                   fmt::format("the ranks of a team make each step together, which needs --staleness 0, "
                               "not {}",
                               spec.exchange.staleness)};
  if (spec.exchange.backup > 0)
    return Refusal{{"exchange.team", "exchange.backup"},
                   "a team pushes the gradients of all its ranks, so none of them can be a backup: leave "
                   "out --backup"};
  if (parse_mesh(spec.train.mesh, spec.train.ranks).replica != spec.train.ranks)
    return Refusal{{"exchange.team", "train.mesh"},
                   "each rank of a team holds a whole model: leave out --mesh or exchange.team"};
  if (goes_on_after_loss(spec))
    return Refusal{{"exchange.team", "train.on_failure"},
                   "a team that has lost a rank cannot continue: use --on-failure stop"};
  return std::nullopt;
}

}  // namespace starling
