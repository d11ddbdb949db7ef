// Runs whose ranks share cores. Their times do not show what ranks with a core each reach.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "starling/report/comparison.h"

namespace starling {

// A run with more threads on a host than the host has cores for them.
struct SharedCores {
  size_t run = 0;         // index into Comparison::runs
  int64_t processes = 1;  // ranks and servers on the host of rank 0
  int64_t threads = 1;    // of each process
  int64_t cores = 1;      // that those processes may use together
};

// Returns the runs whose ranks share cores. Runs that did not report their cores are left out.
std::vector<SharedCores> runs_that_share_cores(const Comparison& comparison);

// Returns a warning that names the runs, by short names, and the figures that they affect. The text is empty
// if no run shares cores.
std::string shared_cores_warning(const Comparison& comparison);

}  // namespace starling
