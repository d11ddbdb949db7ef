// Checks that involve several keys.
#pragma once

#include <string>
#include <vector>

#include "starling/spec/config.h"
#include "starling/spec/schema.h"

namespace starling {

// Throws ConfigError for a combination of values that cannot train. The error names the place where one of
// the keys was written, or the key if it has its default, and a remedy. Returns warnings about values that
// work but are probably a mistake. `cores` is the number of cores of this machine, or 0 if it is unknown.
std::vector<std::string> validate(const RunSpec& spec, const Origins& origins = {}, int cores = 0);

// Returns false for a key that the run does not read:
// - a key of the table `exchange` that its exchange ignores
// - a key of the table `pipeline` if the run has no stages
// - train.accumulate if the run has stages or a hybrid
// - train.bucket_mb and optimizer.share if its exchange has no gradient buckets
// - train.hash_every above 0 if the ranks have no replicas that are equal after every step
bool reads_key(const RunSpec& spec, const SchemaEntry& entry);

}  // namespace starling
