// `starling zoo show MODEL`: what each layer of a model weighs, takes in and computes (nn/layer_volumes.h), and whether data
// or model parallelism moves fewer bytes for it.
#pragma once

#include <string>

#include "starling/run/commands.h"

namespace starling {

// A table, or one JSON object a line. Errors: ConfigError for a batch below 1, pixels for a model without pictures, or too
// few for it.
std::string zoo_show(const ModelSpec& spec, const ZooShowOptions& show, bool json);

}  // namespace starling
