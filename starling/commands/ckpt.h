// `starling ckpt`: lists, verifies, compares and exports the checkpoints of runs (train/checkpoint.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "starling/train/checkpoint_folder.h"

namespace starling {

// A checkpoint as `ckpt ls` and `ckpt verify` show it.
struct CheckpointEntry {
  CheckpointFolder folder;
  uint64_t bytes = 0;     // of all files of the folder
  CheckpointCheck check;  // what is wrong with it
};

// Returns the checkpoints of a run folder, newest first, or the one whose folder `path` is. If `hashes` is
// true, every file is read and compared with its hash. Errors: ConfigError if there is none.
std::vector<CheckpointEntry> checkpoints_at(const std::filesystem::path& path, bool hashes);

// How one tensor of two checkpoints compares.
struct TensorDifference {
  std::string name;        // "model/fc.weight", "optimizer/fc.weight/exp_avg" or "ranks/replica=0/rng.torch"
  std::string text;        // how they differ, as a sentence
  double largest = 0;      // the largest difference of two elements; 0 if shapes or types differ
  double relative = 0;     // the 2-norm of the difference by that of the first tensor; likewise
  bool comparable = true;  // both checkpoints have the tensor, with one shape and one type
};

// The comparison of two checkpoints.
struct CheckpointDifference {
  int64_t tensors = 0;                      // that at least one of the two has
  std::vector<TensorDifference> different;  // not equal bit for bit: incomparable ones, then by `relative`
};

// Compares two checkpoints. Each path is a run folder (its newest whole checkpoint counts), the folder of a
// checkpoint, or a file of weights. Of a file and a checkpoint, only the model is compared. Errors:
// ConfigError if there is no checkpoint; Error (kCheckpoint) or DataError for damaged ones.
CheckpointDifference compare_checkpoints(const std::filesystem::path& a, const std::filesystem::path& b);

// How a checkpoint is exported.
struct ExportOptions {
  bool force = false;     // replace an existing file
  bool averaged = false;  // write the averaged weights (optimizer.ema_decay) in place of the trained ones
};

// Writes the parameters and buffers of a checkpoint to `file`, whose ending decides the format (.safetensors
// or .pt). Returns the number of tensors. Errors: ConfigError if the file exists and options.force is false,
// or if options.averaged is set and there are no averaged weights; those of compare_checkpoints().
int64_t export_checkpoint(const std::filesystem::path& path, const std::filesystem::path& file,
                          const ExportOptions& options);

}  // namespace starling
