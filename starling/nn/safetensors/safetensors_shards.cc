#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "starling/base/atomic_file.h"
#include "starling/base/error.h"
#include "starling/nn/safetensors/safetensors.h"
#include "starling/nn/safetensors/safetensors_index.h"

namespace starling {
namespace {

// Returns shards of at most `bytes`, in the order of the names.
std::vector<TensorMap> split(const TensorMap& tensors, size_t bytes) {
  std::vector<TensorMap> shards;
  size_t filled = 0;
  for (const auto& [name, tensor] : tensors) {
    const size_t size = static_cast<size_t>(tensor.numel()) * tensor.element_size();
    if (shards.empty() || (filled + size > bytes && filled > 0)) {
      shards.emplace_back();
      filled = 0;
    }
    shards.back().emplace(name, tensor);
    filled += size;
  }
  if (shards.empty()) shards.emplace_back();
  return shards;
}

}  // namespace

void write_safetensors_sharded(const std::string& index_path, const TensorMap& tensors, size_t shard_bytes) {
  if (!is_safetensors_index(index_path)) {
    throw Error(ErrorCode::kCheckpoint,
                fmt::format("{}: the name of an index ends in {}", index_path, kSafetensorsIndexEnd));
  }
  const std::string stem = index_path.substr(0, index_path.size() - kSafetensorsIndexEnd.size());
  const std::vector<TensorMap> shards = split(tensors, shard_bytes);
  nlohmann::json weight_map = nlohmann::json::object();
  size_t total = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string shard = fmt::format("{}-{:05}-of-{:05}.safetensors", stem, i + 1, shards.size());
    write_safetensors(shard, shards[i], {{"format", "pt"}});
    for (const auto& [name, tensor] : shards[i]) {
      weight_map[name] = shard.substr(shard.rfind('/') + 1);
      total += static_cast<size_t>(tensor.numel()) * tensor.element_size();
    }
  }
  const nlohmann::json index = {{"metadata", {{"total_size", total}}}, {"weight_map", weight_map}};
  const std::string text = index.dump(2) + "\n";
  AtomicFile file(index_path);
  file.write(text.data(), text.size());
  file.commit();
}

}  // namespace starling
