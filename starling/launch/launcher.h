// The launcher of one host: N copies of a program, one a rank.
//
// It serves the rendezvous store and so holds the shared-memory windows (they outlive any rank, design decision 2), keeps
// each rank's log, folds what several ranks say, and ends all ranks when one fails:
//
//   first sign of a fault  ──0.3 s──► one message naming the rank  ──3 s──► SIGTERM  ──4.5 s──► SIGKILL
//
// The first SIGINT, SIGTERM or SIGHUP is passed on as SIGTERM, upon which ranks save and end; a second one kills.
// With LaunchOptions::expendable a rank that a signal kills is named, and the others go on; standard output of the lowest
// rank that is left becomes the launcher's. Every other fault, and the loss of the last one, ends the run as above.
// No rank survives the launcher, however it ends. Rank 0 has the launcher's standard output, and its standard error
// where that is a terminal.
#pragma once

#include "starling/base/clock.h"
#include "starling/launch/launch_options.h"

namespace starling {

// Runs all ranks to their end, on the calling thread. Returns the exit status for the program: 0 when all ranks ended well (those that were lost while the others went on do not count); the failing
// rank's status when that is one of the program's own (2 to 6), else 1; after an interruption the ranks' status, 128 + signal where they
// had to be killed. Throws ConfigError (run folder) or Error(kInternal) when the ranks cannot be started; none runs then.
int launch(const LaunchOptions& options, const Clock& clock);

}  // namespace starling
