// The store of a job on one host, served by the launcher.
#pragma once

#include "starling/launch/launch_options.h"

namespace starling {

// A fresh job key and a StoreServer on an abstract Unix socket of a random name; it leaves nothing in the file system. CommError where the
// socket cannot be had. The key lives in the returned value alone; children get it by descriptor.
Rendezvous start_local_rendezvous();

}  // namespace starling
