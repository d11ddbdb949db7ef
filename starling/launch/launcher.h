// The launcher starts copies of a program, one per rank, and supervises them.
//
// It serves the store for the rendezvous and owns the shared-memory windows, which therefore outlive every
// rank (design decision 2). It writes a log per rank, prints equal lines of several ranks once, and ends all
// ranks if a rank fails:
//
//   first sign of a fault  ──0.3 s──► message that names the rank  ──3 s──► SIGTERM  ──4.5 s──► SIGKILL
//
// The times count from the first sign of the fault. The launcher forwards the first SIGINT, SIGTERM or SIGHUP
// as SIGTERM, and the ranks then save their state and end. A second signal kills the ranks. It forwards
// SIGUSR1 and SIGUSR2 as they are, to a rank that is still starting when it handles them.
//
// With LaunchOptions::expendable, the launcher names a rank that a signal killed, and the remaining ranks
// continue. The standard output of the lowest remaining rank becomes that of the launcher. Any other fault,
// and the loss of the last rank, ends the run as described above.
//
// No rank outlives the launcher. Rank 0 shares the standard output of the launcher. It also shares the
// standard error if that is a terminal.
#pragma once

#include "starling/base/clock.h"
#include "starling/launch/launch_options.h"

namespace starling {

// Runs all ranks until they end, on the calling thread. Returns the exit status of the program:
// - 0 if all ranks succeeded. Ranks that were lost while the remaining ranks continued do not count.
// - the status of the rank that failed if it is between 2 and 6, otherwise 1.
// - after an interruption, 128 + signal if the ranks ended in order (they reported Error(kInterrupted)) or
//   were killed, otherwise the status of the ranks.
// Throws ConfigError (run folder) or Error(kInternal) if the ranks cannot be started. No rank runs then.
int launch(const LaunchOptions& options, const Clock& clock);

}  // namespace starling
