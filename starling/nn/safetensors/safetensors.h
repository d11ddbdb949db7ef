// Reads and writes files of torch's tensors: safetensors, sharded safetensors with an index, and .pt files,
// which are torch.save of a state_dict. starling/weights/weights_file.h has the two formats. It also reads
// compressed weights (starling/compress/compressed_file.h). It treats a file as hostile and executes nothing
// of it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <map>
#include <span>
#include <string>

namespace starling {

// Tensors by name.
using TensorMap = std::map<std::string, at::Tensor>;

// The content of a file of tensors.
struct TensorFile {
  // Views of the memory-mapped file, which stays mapped as long as one of them lives. A write into a view
  // changes only this process's memory, never the file. The file must not be truncated meanwhile. Replace it
  // by a rename, as write_weights does. A tensor that is not contiguous or not aligned in the file is a copy.
  // Tensors of a .pt file that share memory there therefore share it here only if neither is a copy.
  TensorMap tensors;
  std::map<std::string, std::string> metadata;  // "__metadata__"; the numbers and texts of a .pt file
};

// Reads safetensors, a sharded model by its index, a .pt file, or compressed weights. A path that ends in
// .safetensors.index.json is an index. Otherwise the content of the file decides, not its name. Errors:
// DataError that names the file, the place and the remedy.
TensorFile read_weights(const std::string& path);

// Returns the tensors of a file of compressed weights that is in memory, as copies. `path` is for messages.
// Errors: DataError, as read_weights().
TensorFile read_compressed(const std::string& path, std::span<const std::byte> bytes);

// Writes tensors atomically. The ending of `path` decides the format. torch.load reads .pt and .pth files.
// For .safetensors.index.json, the tensors are written in shards of at most 5 GB. Other names are safetensors
// with the metadata {"format": "pt"} that Hugging Face expects. Errors: as write_safetensors().
void write_weights(const std::string& path, const TensorMap& tensors);

// Reads FILE.safetensors, or a sharded model by its FILE.safetensors.index.json. Errors: DataError that names
// the file, the tensor and the offset.
TensorFile read_safetensors(const std::string& path);

// Writes a safetensors file atomically: `path` holds either the old or the whole new content (atomic_file.h).
// Errors: Error with the path and the cause, such as a full disk; the old file stays.
void write_safetensors(const std::string& path, const TensorMap& tensors,
                       const std::map<std::string, std::string>& metadata = {});

// Writes shards of at most shard_bytes, named NAME-00001-of-00003.safetensors as by Hugging Face. A larger
// tensor gets a shard of its own. The index NAME.safetensors.index.json is written last. Each file is
// replaced atomically, but the set is not: write a new set into a new folder. Errors: as write_safetensors(),
// and Error if index_path does not end in .safetensors.index.json.
void write_safetensors_sharded(const std::string& index_path, const TensorMap& tensors, size_t shard_bytes);

}  // namespace starling
