// How the threads of a process that no launcher has started wait for each other.
#pragma once

#include <string>
#include <vector>

#include "starling/launch/environment.h"
#include "starling/spec/run_spec.h"

namespace starling {

// Executes the program anew with GOMP_SPINCOUNT set, if this process trains alone with several threads and
// the environment does not say how they wait. OpenMP reads the variable only when a process begins. Without
// it, a thread that waits keeps its core for longer, which other processes of the machine may need.
// Returns if there is nothing to do, and if the program cannot be executed. Call it before anything is
// written. argv is that of the process.
void wait_briefly(const RunSpec& spec, const Environment& environment, const std::vector<std::string>& argv);

}  // namespace starling
