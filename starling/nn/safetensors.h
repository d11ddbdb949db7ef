// safetensors: named tensors in one file: 8 bytes little-endian header length, a JSON header, the bytes
//. The header of a file is treated as hostile:
// lengths, offsets, overlaps, dtypes and shapes are checked before memory is taken or mapped.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

namespace starling {

using TensorMap = std::map<std::string, at::Tensor>;

struct TensorFile {
  TensorMap tensors;  // views of the memory-mapped file, which stays mapped as long as one lives
  std::map<std::string, std::string> metadata;  // "__metadata__"
};

// Reads FILE.safetensors, or a sharded model by its FILE.safetensors.index.json. Errors: DataError naming file, tensor
// and offset.
TensorFile read_safetensors(const std::string& path);

// Writes beside the file, fsyncs, renames: `path` holds either the old or the whole new content. Errors: Error with the
// path and the cause (disk full); the old file stays.
void write_safetensors(const std::string& path, const TensorMap& tensors,
                       const std::map<std::string, std::string>& metadata = {});

// Writes shards of at most shard_bytes and the index `path` (…safetensors.index.json) as Hugging Face does.
void write_safetensors_sharded(const std::string& index_path, const TensorMap& tensors, size_t shard_bytes);

}  // namespace starling
