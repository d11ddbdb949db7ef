#include "starling/nn/safetensors_index.h"

#include <fmt/format.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "starling/base/error.h"
#include "starling/nn/atomic_file.h"
#include "starling/nn/safetensors.h"
#include "starling/nn/safetensors_header.h"

namespace starling {
namespace {

constexpr std::string_view kIndexEnd = ".safetensors.index.json";

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash + 1);
}

std::string read_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw DataError(fmt::format("{}: cannot open", path));
  std::string text(kMaxSafetensorsHeader + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  if (text.size() > kMaxSafetensorsHeader)
    throw DataError(fmt::format("{}: larger than {} bytes", path, kMaxSafetensorsHeader));
  return text;
}

nlohmann::json parse_flat(const std::string& path, const std::string& text) {
  const auto limit_depth = [&](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
    if (depth > 4) throw DataError(fmt::format("{}: nested deeper than an index is", path));
    return true;
  };
  try {
    return nlohmann::json::parse(text, limit_depth);
  } catch (const nlohmann::json::exception& error) {
    throw DataError(fmt::format("{}: not JSON: {}", path, error.what()));
  }
}

// Shards of at most `bytes`, in the order of the names.
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

bool is_safetensors_index(const std::string& path) {
  return path.size() >= kIndexEnd.size() &&
         path.compare(path.size() - kIndexEnd.size(), kIndexEnd.size(), kIndexEnd) == 0;
}

SafetensorsIndex read_safetensors_index(const std::string& path) {
  const nlohmann::json json = parse_flat(path, read_text(path));
  const auto map = json.is_object() ? json.find("weight_map") : json.end();
  if (map == json.end() || !map->is_object())
    throw DataError(fmt::format("{}: no \"weight_map\" of names to files", path));
  SafetensorsIndex index;
  for (const auto& [name, file] : map->items()) {
    if (!file.is_string())
      throw DataError(fmt::format("{}: weight_map: \"{}\" has no file name", path, name));
    const std::string shard = file.get<std::string>();
    if (shard.empty() || shard == "." || shard == ".." ||
        shard.find_first_of(std::string("/\0", 2)) != std::string::npos) {
      throw DataError(fmt::format("{}: weight_map: \"{}\": the shard \"{}\" is not a file beside the index",
                                  path, name, shard));
    }
    index.shards[folder_of(path) + shard].push_back(name);
  }
  if (const auto metadata = json.find("metadata"); metadata != json.end() && metadata->is_object()) {
    for (const auto& [key, value] : metadata->items()) {
      index.metadata[key] = value.is_string() ? value.get<std::string>() : value.dump();
    }
  }
  return index;
}

void write_safetensors_sharded(const std::string& index_path, const TensorMap& tensors, size_t shard_bytes) {
  if (!is_safetensors_index(index_path)) {
    throw Error(ErrorCode::kCheckpoint,
                fmt::format("{}: the name of an index ends in {}", index_path, kIndexEnd));
  }
  const std::string stem = index_path.substr(0, index_path.size() - kIndexEnd.size());
  const std::vector<TensorMap> shards = split(tensors, shard_bytes);
  nlohmann::json weight_map = nlohmann::json::object();
  size_t total = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string shard = fmt::format("{}-{:05}-of-{:05}.safetensors", stem, i + 1, shards.size());
    write_safetensors(shard, shards[i], {{"format", "pt"}});
    for (const auto& [name, tensor] : shards[i]) {
      weight_map[name] = shard.substr(folder_of(shard).size());
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
