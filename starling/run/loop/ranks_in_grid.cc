#include "starling/run/loop/ranks_in_grid.h"

#include "starling/comm/bootstrap.h"
#include "starling/grid/rank_grid.h"
#include "starling/run/run_state.h"

namespace starling {

std::unique_ptr<GridGroup> ranks_in_grid(Run& run, const std::string& grid) {
  RunState& state = LoopAccess::state_of(run);
  return with_faults_reported(state, [&] {
    if (!state.session) {  // --dry-run
      rank_grid_of(grid, static_cast<int>(state.spec.train.ranks));
      return std::make_unique<GridGroup>(make_single_group(), RankGrid{1, 1});
    }
    const RunEnvironment& environment = state.own_loop();
    const RankGrid sides = rank_grid_of(grid, environment.group.size());
    return std::make_unique<GridGroup>(environment.make_group("grid", {}), sides);
  });
}

}  // namespace starling
