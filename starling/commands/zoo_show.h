// `starling zoo show MODEL` shows what each layer of a model weighs, takes in and computes
// (nn/layer_volumes.h). It also shows whether data or model parallelism moves fewer bytes for each layer.
#pragma once

#include <string>

#include "starling/commands/commands.h"

namespace starling {

// Returns a table, or one JSON object per line if `json` is true. Errors: ConfigError for a batch below 1,
// for pixels that are too few, and for pixels given to a model that reads no images.
std::string zoo_show(const ModelSpec& spec, const ZooShowOptions& show, bool json);

}  // namespace starling
