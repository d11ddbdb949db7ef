// The index of a sharded model, NAME.safetensors.index.json:
//   {"metadata": {"total_size": bytes, …}, "weight_map": {tensor: file beside the index, …}}
#pragma once

#include <map>
#include <string>
#include <vector>

namespace starling {

struct SafetensorsIndex {
  std::map<std::string, std::vector<std::string>> shards;  // path of the shard -> its tensors
  std::map<std::string, std::string> metadata;             // values that are not strings as their JSON text
};

bool is_safetensors_index(const std::string& path);

// Errors: DataError for what is not such a file, or names a shard outside the index's folder.
SafetensorsIndex read_safetensors_index(const std::string& path);

}  // namespace starling
