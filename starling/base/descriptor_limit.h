// The limit of open descriptors of this process. A rank needs two for each rank of another host, and the
// server of a store one for each connection.
#pragma once

namespace starling {

// Raises the soft limit (ulimit -n) to the hard limit, which needs no privileges. If that fails, the limit
// stays, and the error that then occurs says what to raise. Programs that the process starts inherit the
// limit.
void raise_descriptor_limit();

}  // namespace starling
