// safetensors: named tensors in one file: 8 bytes little-endian header length, a JSON header, the bytes
// (https://github.com/huggingface/safetensors, "Format"). dtypes: F64 F32 F16 BF16 I64 I32 I16 I8 U8 BOOL.
// The header of a file is treated as hostile: lengths, offsets, overlaps, dtypes and shapes are checked
// before memory is taken or mapped.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

namespace starling {

using TensorMap = std::map<std::string, at::Tensor>;

struct TensorFile {
  // Views of the memory-mapped file, which stays mapped as long as one lives; writing into one changes its
  // own memory, never the file. The file must not be truncated meanwhile (replace it by rename, as
  // write_safetensors does).
  TensorMap tensors;
  std::map<std::string, std::string> metadata;  // "__metadata__"
};

// Reads FILE.safetensors, or a sharded model by its FILE.safetensors.index.json. Errors: DataError naming
// file, tensor and offset.
TensorFile read_safetensors(const std::string& path);

// Writes beside the file, fsyncs, renames: `path` holds either the old or the whole new content. Errors:
// Error with the path and the cause (disk full); the old file stays.
void write_safetensors(const std::string& path, const TensorMap& tensors,
                       const std::map<std::string, std::string>& metadata = {});

// Writes shards of at most shard_bytes (a larger tensor gets a shard of its own) named
// NAME-00001-of-00003.safetensors and, last, the index NAME.safetensors.index.json, as Hugging Face does.
// Each file is replaced atomically, the set is not: write a new set into a new folder.
void write_safetensors_sharded(const std::string& index_path, const TensorMap& tensors, size_t shard_bytes);

}  // namespace starling
