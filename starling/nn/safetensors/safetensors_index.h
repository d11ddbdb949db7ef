// The index of a sharded model, NAME.safetensors.index.json:
//   {"metadata": {"total_size": bytes, …}, "weight_map": {tensor: file beside the index, …}}
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace starling {

// How the name of an index ends.
inline constexpr std::string_view kSafetensorsIndexEnd = ".safetensors.index.json";

// The parsed index.
struct SafetensorsIndex {
  std::map<std::string, std::vector<std::string>> shards;  // path of the shard -> its tensors
  std::map<std::string, std::string> metadata;  // a value that is not a string is kept as its JSON text
};

// Returns true if the path has the name of an index.
bool is_safetensors_index(const std::string& path);

// Parses the text of the index `path`. Errors: as read_safetensors_index().
SafetensorsIndex parse_safetensors_index(const std::string& path, const std::string& text);

// Reads an index. Errors: DataError if the file is not an index, or names a shard outside the index's folder.
SafetensorsIndex read_safetensors_index(const std::string& path);

}  // namespace starling
