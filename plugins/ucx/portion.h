// The number of bytes that UCX sends in one piece over TCP (UcxWorker::portion).
#pragma once

#include <ucp/api/ucp.h>

#include <cstddef>

namespace starling {

// Tells UCX to send messages of up to a portion at once and without a request, and returns the portion in
// bytes. Returns 0 and changes nothing if this is not certain to work, or if UCX's environment or files
// already set it.
size_t set_portion(ucp_config_t* config);

}  // namespace starling
