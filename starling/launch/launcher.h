// The launcher starts copies of a program, one per rank, and supervises them.
//
// It serves the store for the rendezvous and owns the shared-memory windows, which therefore outlive every
// rank (design decision 2). It writes a log per rank, prints equal lines of several ranks once, and ends all
// ranks if a rank fails:
//
//   first sign of a fault  ──0.3 s──► message that names the rank  ──3 s──► SIGTERM  ──4.5 s──► SIGKILL
//
// The times count from the first sign of the fault. If the first reports only name a peer, the message waits
// for the fault of that peer, for at most 3 s.
//
// The launcher forwards the first SIGINT, SIGTERM or SIGHUP as SIGTERM, and the ranks then save their state
// and end. A second signal kills the ranks. Ctrl-Z stops the ranks and the launcher. SIGUSR1 and SIGUSR2 are
// forwarded as they are. A rank that is still starting gets them once it handles them.
//
// With LaunchOptions::expendable, the launcher names a rank that a signal killed, and the remaining ranks
// continue. The standard output of the lowest remaining rank becomes that of the launcher. Any other fault,
// and the loss of the last rank, ends the run as described above.
//
// No rank outlives the launcher. If all ranks run on this host, rank 0 shares the standard output of the
// launcher. It also shares the standard error if that is a terminal.
#pragma once

#include "starling/base/clock.h"
#include "starling/launch/launch_options.h"

namespace starling {

// Runs all ranks until they end, on the calling thread. Returns the exit status of the program:
// - 0 if all ranks succeeded. Ranks that were lost while the remaining ranks continued do not count.
// - After a fault, LaunchOptions::status_of() of the error that the rank with the first fault reported. If
//   that rank reported no error, 4 if a signal killed it. Otherwise its status if that is between 2 and 6,
//   and else 1.
// - After an interruption, 128 + signal if the launcher killed the ranks, or if a rank reported
//   Error(kInterrupted) and no rank failed. Otherwise the largest status of the ranks.
// Throws ConfigError, CommError or Error (kInternal, kInterrupted) if the ranks cannot be started. No rank
// runs then.
int launch(const LaunchOptions& options, const Clock& clock);

}  // namespace starling
