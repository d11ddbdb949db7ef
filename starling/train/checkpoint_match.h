// Whether a checkpoint belongs to this run, and putting its tensors back.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "starling/train/checkpoint.h"

namespace starling {

// Throws ConfigError naming the first key of `spec` that shapes training and differs from the checkpoint's, both values
// and the remedy.
void require_same_configuration(const std::filesystem::path& folder, const CheckpointState& state,
                                const RunSpec& spec);

// Throws Error (kCheckpoint) naming the first tensor that only one side has, or whose global shape or type differs: the
// checkpoint is another model's.
void require_same_tensors(const std::filesystem::path& folder,
                          const std::map<std::string, StoredTensor>& stored, const TensorMap& target);

// Copies whole tensors into the run's own memory after require_same_tensors; nothing is copied unless all fit.
// Errors: as there, and for a stored slice, which has to be put together first.
void restore_tensors(const std::filesystem::path& folder, const std::map<std::string, StoredTensor>& stored,
                     const TensorMap& target);

// The stored form of whole tensors (no copy).
std::map<std::string, StoredTensor> whole_tensors(const TensorMap& tensors);

}  // namespace starling
