// Checkpoints: everything that a run needs to go on as if it had not been interrupted, in
// RUN/checkpoints/step-000100/ (checkpoint_folder.h says how it is kept whole):
//
//   model.safetensors      parameters and buffers under their own names; torchvision and transformers can load it
//   optimizer.safetensors  "fc.weight/exp_avg": the state `exp_avg` of the tensor `fc.weight`
//   ranks.safetensors      "replica=1/rng.torch": what each rank holds for itself, by its coordinate in the mesh
//   state.json             step, data position, seed, losses, choices, configuration
//   manifest.json          sizes and hashes of the others
// The metadata entry "slices" of the first two holds, as JSON, each tensor's global name, global shape and the offset of
// the slice that is stored (its extent is the stored tensor's shape), so that a run with another mesh can put it together.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "starling/nn/safetensors.h"
#include "starling/spec/run_spec.h"
#include "starling/train/checkpoint_folder.h"

namespace starling {

// A tensor, or the part of one that starts at `offset`. Empty global_shape: the whole tensor.
struct StoredTensor {
  at::Tensor value;
  std::vector<int64_t> global_shape;
  std::vector<int64_t> offset;
};

struct CheckpointState {
  int64_t step = 0;            // updates done
  int64_t total_steps = 0;     // of the whole run: the schedule's length
  int64_t epoch = 0;           // the pass over the data that the next batch belongs to
  int64_t batches = 0;         // data position: global batches used since the start (Loader's first_step)
  uint64_t seed = 0;           // of the run
  std::vector<double> losses;  // the window that train_loss is taken from
  std::map<std::string, std::string> choices;  // made by measurement; a resumed run takes them as they are
  RunSpec spec;                                // the run's configuration
  std::map<std::string, StoredTensor> model;   // by global name
  std::map<std::string, std::map<std::string, StoredTensor>> optimizer;  // [tensor's global name][state name]
  std::map<std::string, TensorMap>
      ranks;  // [coordinate, "replica=1"][name]: RNG states, local buffers, residuals
};

struct CheckpointOptions {
  int64_t keep = 2;  // whole checkpoints that stay, the new one included; at least 1
  IoStep before;     // for tests
};

// Writes the state's checkpoint in run_dir and prunes older ones. Returns its folder. Tensors must not change meanwhile.
// Errors: Error (kCheckpoint) with path and cause, such as a full disk; then what was written is removed and older
// checkpoints are as before.
std::filesystem::path write_checkpoint(const std::filesystem::path& run_dir, const CheckpointState& state,
                                       const CheckpointOptions& options = {});

// The newest checkpoint in run_dir whose files all have their hashes. For each newer one that is torn or damaged a
// message that says so is added to `warnings`.
std::optional<CheckpointFolder> newest_whole(const std::filesystem::path& run_dir,
                                             std::vector<std::string>* warnings);

// Tensors are views of the mapped files (copy them before the folder may be pruned on a file system without unlink
// semantics). Errors: Error (kCheckpoint) naming the folder and what is wrong, if it is torn, damaged or malformed.
CheckpointState read_checkpoint(const std::filesystem::path& folder);

}  // namespace starling
