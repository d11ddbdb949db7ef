#include "starling/run/loop/sampling.h"

#include <fmt/format.h>

#include <memory>
#include <string>

#include "starling/base/clock.h"
#include "starling/comm/bootstrap.h"
#include "starling/run/run_state.h"

namespace starling {

McmcResult sample_posterior(Run& run, const Posterior& posterior, const McmcOptions& options) {
  RunState& state = LoopAccess::state_of(run);
  McmcResult result = with_faults_reported(state, [&] {
    if (!state.session) {  // --dry-run
      const std::unique_ptr<Group> alone = make_single_group();
      const SystemClock clock;
      McmcOptions unsaved = options;
      unsaved.checkpoint.clear();  // a dry run writes no file
      return sample_posterior(unsaved, {.group = *alone, .posterior = posterior, .clock = clock});
    }
    const RunEnvironment& environment = state.own_loop();
    const McmcParts parts{
        .group = environment.group,
        .posterior = posterior,
        .clock = environment.process.clock,
        .stop = &environment.process.stop,
        .on_transition = [&state](int64_t number) { state.session->note_loop_step(number); }};
    return sample_posterior(options, parts);
  });
  if (!result.interrupted || state.throw_faults) return result;
  end_interrupted(state,
                  options.checkpoint.empty()
                      ? "The run was interrupted. Nothing was saved, because the program names no "
                        "folder for checkpoints (McmcOptions::checkpoint)."
                      : fmt::format("The run was interrupted. Checkpoints are in {}. Start the program "
                                    "again to go on from them.",
                                    options.checkpoint));
}

}  // namespace starling
