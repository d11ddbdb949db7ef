// The file timeline.json of a run: what the ranks of a pipeline did in the last step.
#pragma once

#include <string>

#include "starling/parallel/pipeline/traced.h"

namespace starling {

// Collective. Rank 0 writes what the ranks did in the last step to `file`. All other ranks give an empty
// name.
void write_timeline_file(Traced& traced, const std::string& file);

}  // namespace starling
