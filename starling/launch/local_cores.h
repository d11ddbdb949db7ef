// How many processes of a run share the cores of one host.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "starling/launch/cpu_share.h"
#include "starling/net/store/store.h"

namespace starling {

// The processes of a run on one host, and the cores that they share.
struct LocalCores {
  int64_t processes = 1;  // processes of the run on the host
  int64_t cores = 0;      // logical CPUs that these processes may use together; 0: unknown
};

// Tells the other processes of the run on which host this process runs and which CPUs it may use.
void put_cores(Store& store, int rank, const std::string& host_id, const std::vector<Cpu>& cpus);

// Returns the processes and cores of the host on which `rank` runs. Waits until all `world_size` processes
// have called put_cores(). Errors: those of Store::get.
LocalCores local_cores(Store& store, int rank, int world_size, Milliseconds timeout);

}  // namespace starling
