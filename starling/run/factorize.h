// `starling factorize`: matrix factorisation over ranks (factor/factorize.h, docs/factorization.md).
#pragma once

#include "starling/run/commands.h"
#include "starling/run/session.h"

namespace starling {

// What a rank, or a server, of the job does. Rank 0 prints a line an epoch and the result. Returns the exit status.
int factorize(const FactorizeSpec& what, const CommandOptions& options, Session& session);

// Refuses what cannot be, before anything is started: ConfigError.
void check_factorize(const RunSpec& spec, const FactorizeSpec& what);

}  // namespace starling
