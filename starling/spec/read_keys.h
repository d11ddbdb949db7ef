// Which keys of the configuration a run reads.
#pragma once

#include <string>

#include "starling/spec/run_spec.h"
#include "starling/spec/schema.h"

namespace starling {

// Returns true if the run is a pipeline: over ranks, or in the threads of one process.
bool has_stages(const RunSpec& spec);

// Returns false for a key that the run does not read:
// - a key of the table `exchange` that its exchange ignores.
// - a key of the table `pipeline` if the run has no stages.
// - train.accumulate if the run has stages or a hybrid.
// - train.bucket_mb and optimizer.share if its exchange has no gradient buckets.
// - train.hash_every above 0 if the ranks have no replicas that are equal after every step.
// - a key that another choice makes meaningless (choice_that_ignores()).
bool reads_key(const RunSpec& spec, const SchemaEntry& entry);

// Returns the choice of the run under which its exchange or its pipeline ignores the key, such as
// "--codec 1bit" for train.bucket_mb. Returns an empty text if there is none.
std::string choice_that_ignores(const RunSpec& spec, const SchemaEntry& entry);

}  // namespace starling
