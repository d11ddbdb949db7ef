// Checkpoints hold everything that a run needs to go on as if it had not been interrupted. A checkpoint is a
// folder RUN/checkpoints/step-000100/ (checkpoint_folder.h explains how it stays whole):
//
//   model.safetensors      parameters and buffers by name; torchvision and transformers can load the file
//   optimizer.safetensors  "fc.weight/exp_avg": the state `exp_avg` of the tensor `fc.weight`
//   ranks.safetensors      "replica=1/rng.torch": what each rank holds for itself, by its mesh coordinate
//   state.json             step, data position, seed, losses, choices, configuration
//   manifest.json          format version, lineage, and sizes and hashes of the other files
//
// The metadata entry "slices" of the first two files holds JSON: each tensor's global name, its global shape
// and the offset of the stored slice. The extent of the slice is the stored tensor's shape. A run with
// another mesh can therefore join the slices.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "starling/nn/safetensors/safetensors.h"
#include "starling/train/checkpoint_folder.h"
#include "starling/train/checkpoint_scalars.h"

namespace starling {

// A tensor, or the part of a tensor that starts at `offset`. An empty global_shape means the whole tensor.
struct StoredTensor {
  at::Tensor value;
  std::vector<int64_t> global_shape;
  std::vector<int64_t> offset;
};

// The content of a checkpoint.
struct CheckpointState : CheckpointScalars {
  std::map<std::string, StoredTensor> model;                             // by global name
  std::map<std::string, std::map<std::string, StoredTensor>> optimizer;  // [tensor's global name][state name]
  // What each rank holds for itself, by coordinate ("replica=1") and name: RNG states, buffers, residuals.
  std::map<std::string, TensorMap> ranks;
  Lineage lineage;  // of the writer. read_checkpoint() sets it; write_checkpoint() uses that of its options
};

// How a checkpoint is written.
struct CheckpointOptions {
  int64_t keep = 2;      // number of whole checkpoints of the lineage to keep, with the new one; at least 1
  IoStep before = {};    // is called before each step of writing; an exception ends the writing
  Lineage lineage = {};  // of the writer. If it is empty, no checkpoint of another step is deleted
  Say say = {};          // receives what happened to other checkpoints
};

// Writes a checkpoint of `state` in run_dir, prunes the folder and returns the new checkpoint. The tensors
// must not change meanwhile. Errors: Error (kCheckpoint) with the path and the cause, such as a full disk. If
// an error occurs before the new folder has its name, what was written is removed. Older checkpoints keep
// their content.
std::filesystem::path write_checkpoint(const std::filesystem::path& run_dir, const CheckpointState& state,
                                       const CheckpointOptions& options = {});

// A checkpoint that newest_whole() did not take.
struct PassedCheckpoint {
  std::string text;  // its path and why it cannot be used
  int64_t step = 0;
  bool unreadable = false;  // a file cannot be read now; the checkpoint may be whole
};

// Returns the newest checkpoint in run_dir all of whose files match their hashes. Returns nothing if there is
// none. Adds each newer checkpoint, which is torn, is damaged or cannot be read now, to `passed`, which may
// be null. Errors: Error (kCheckpoint) if the newest checkpoint that is not damaged has a newer format
// version.
std::optional<CheckpointFolder> newest_whole(const std::filesystem::path& run_dir,
                                             std::vector<PassedCheckpoint>* passed);

// Reads a checkpoint. The tensors are views of the mapped files. On a file system that does not keep deleted
// files open, copy them before the folder may be removed. Errors: Error (kCheckpoint) that names the folder
// and the problem if the checkpoint is torn, damaged or malformed, cannot be read now, or has a newer format
// version. ConfigError if its configuration has a key or a value that this program does not know.
CheckpointState read_checkpoint(const std::filesystem::path& folder);

}  // namespace starling
