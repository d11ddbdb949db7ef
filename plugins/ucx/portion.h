// In what UCX keeps in one piece over TCP (UcxWorker::portion).
#pragma once

#include <ucp/api/ucp.h>

#include <cstddef>

namespace starling {

// Tells UCX to send messages up to a portion unasked and in one piece, and returns its bytes; 0, and nothing is changed, where that is not
// certain or where UCX has been told otherwise, by its environment or its files.
size_t set_portion(ucp_config_t* config);

}  // namespace starling
