// Checks whether a checkpoint belongs to this run, and restores its tensors.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "starling/train/checkpoint.h"

namespace starling {

// Throws ConfigError if a key of `spec` that affects training differs from the checkpoint's. The message
// names the first such key, both values and the remedy.
void require_same_configuration(const std::filesystem::path& folder, const CheckpointState& state,
                                const RunSpec& spec);

// Throws Error (kCheckpoint) if only one side has a tensor, or a tensor's global shape or dtype differs: the
// checkpoint then belongs to another model. The message names the first such tensor.
void require_same_tensors(const std::filesystem::path& folder,
                          const std::map<std::string, StoredTensor>& stored, const TensorMap& target);

// Copies whole tensors into the run's own memory after require_same_tensors(). Nothing is copied unless all
// tensors fit. Errors: those of require_same_tensors(); Error (kCheckpoint) for a stored slice, which must be
// joined first.
void restore_tensors(const std::filesystem::path& folder, const std::map<std::string, StoredTensor>& stored,
                     const TensorMap& target);

// Returns the stored form of whole tensors, without copying them.
std::map<std::string, StoredTensor> whole_tensors(const TensorMap& tensors);

}  // namespace starling
