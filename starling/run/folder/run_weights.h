// Finds the weights and the configuration of an earlier run, for `starling eval` and `starling sample`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "starling/spec/config.h"
#include "starling/spec/run_spec.h"
#include "starling/train/checkpoint.h"

namespace starling {

// The names of these files in a run folder.
inline constexpr const char* kConfigFile = "config.toml";
inline constexpr const char* kWeightsFile = "model.safetensors";
inline constexpr const char* kCompressedWeightsFile = "model.compressed";
inline constexpr const char* kResultFile = "result.json";

// What a run folder or a checkpoint holds for those who use its model.
struct RunWeights {
  RunSpec spec;            // the configuration of the run
  std::string file;        // a safetensors file
  int64_t step = 0;        // number of updates that made the weights
  std::string vocabulary;  // of a text model: the characters in the order of their ids; empty if unknown
};

// Calls newest_whole(), and warns on standard error of each newer checkpoint that is not taken. Warns of
// nothing if none is whole. Errors: those of newest_whole().
std::optional<CheckpointFolder> newest_or_warn(const std::filesystem::path& run_dir,
                                               std::vector<PassedCheckpoint>& passed);

// Returns the newest weights in `folder`: a run folder, whose model.safetensors or newest whole checkpoint
// has the most updates, or one checkpoint. Errors: ConfigError for a folder without weights or configuration,
// and for the run of a user's program, whose model is not known here. Error(kCheckpoint) for a damaged
// checkpoint.
RunWeights find_run_weights(const std::string& folder);

// Returns the configuration that evaluates the weights. It has the run's keys of the model and the data, its
// seed, train.eval_batch and comm.security, and its precision if that is fp64. model.init names the weights.
// Keys that concern several ranks, such as model.batch_norm and data.partition, and all other keys have their
// defaults. `folder` names the origin of the values.
Config evaluation_of(const RunWeights& weights, const std::string& folder);

}  // namespace starling
