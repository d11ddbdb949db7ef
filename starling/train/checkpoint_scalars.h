// CheckpointScalars is what state.json of a checkpoint (checkpoint.h) holds: everything but the tensors.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "starling/spec/run_spec.h"

namespace starling {

// The position, the choices and the configuration of a run. The counts are from 0 to 2^53.
struct CheckpointScalars {
  int64_t step = 0;            // number of updates done
  int64_t total_steps = 0;     // steps of the whole run, the length of the learning-rate schedule
  int64_t epoch = 0;           // the epoch of the next batch
  int64_t batches = 0;         // global batches used since the start (LoaderOptions::first_step)
  uint64_t seed = 0;           // of the run
  std::vector<double> losses;  // the last losses, from which train_loss is computed
  std::map<std::string, std::string> choices;  // made by measurement; a resumed run takes them as they are
  RunSpec spec;                                // the run's configuration
};

// Returns the text of state.json.
std::string write_checkpoint_scalars(const CheckpointScalars& state);
// Reads the text of state.json. path: for messages.
// Errors: nlohmann::json::exception if the text is no JSON, lacks a value, or has a value out of range.
// ConfigError if this program does not know a key or a value of the configuration.
CheckpointScalars parse_checkpoint_scalars(const std::string& path, const std::string& text);

}  // namespace starling
