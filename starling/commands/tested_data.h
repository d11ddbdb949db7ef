// What commands that test a model have in common.
#pragma once

#include <cstdint>

#include "starling/data/source_factory.h"
#include "starling/spec/run_spec.h"

namespace starling {

// Opens the data of spec.data. Errors: ConfigError if the data has no test part; those of open_data().
DataSets open_tested_data(const RunSpec& spec);

// Returns the samples of an evaluation batch: train.eval_batch, or 64 if it is automatic.
int64_t evaluation_batch(const RunSpec& spec);

}  // namespace starling
