// `starling data serve`: a process that serves pictures to the ranks of training jobs (data/served_server.h) until it is told to
// stop.
#pragma once

#include <cstdint>
#include <string>

#include "starling/run/commands.h"

namespace starling {

// Serves spec.data.source at comm.interface (empty: the loopback interface) and a port. The key is that of serve.key_file, which
// is made where it is not there; without a name a file that readers of this user on this host find by the port, gone when the
// server ends. Prints one line when it serves and one at the end; blocks until SIGTERM or Ctrl-C. Errors: ConfigError, DataError,
// CommError where the port cannot be had.
int serve_data(const RunSpec& spec, const DataServeOptions& serve, const CommandOptions& options);

}  // namespace starling
