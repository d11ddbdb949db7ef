// `starling data serve` serves images or a text to the ranks of training jobs (data/served/served_server.h)
// until it is told to stop.
#pragma once

#include <cstdint>
#include <string>

#include "starling/commands/commands.h"

namespace starling {

// Serves spec.data.source at comm.interface and a port. An empty interface means the loopback interface. The
// key is that of serve.key_file, which is created if missing. Without a name, the key is in a file that
// readers of this user on this host find by the port. The server removes this file when it ends. Unless -q is
// given, the function prints what it serves when it starts, and what it has served at the end. It blocks
// until SIGTERM or Ctrl-C. Errors: ConfigError, for example without a key for an address of the network;
// DataError; CommError if the port is not available.
int serve_data(const RunSpec& spec, const DataServeOptions& serve, const CommandOptions& options);

}  // namespace starling
