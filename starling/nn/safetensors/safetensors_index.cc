#include "starling/nn/safetensors/safetensors_index.h"

#include <fmt/format.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <utility>

#include "starling/base/error.h"
#include "starling/base/read_file.h"
#include "starling/weights/weights_file.h"

namespace starling {
namespace {

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash + 1);
}

std::string read_text(const std::string& path) {
  FileText file = read_file(path, weights::kMaxHeaderBytes);
  if (file.error == EFBIG)
    throw DataError(fmt::format("{}: larger than {} bytes", path, weights::kMaxHeaderBytes));
  if (file.error != 0) throw DataError(fmt::format("{}: cannot open: {}", path, file.reason()));
  return std::move(file.text);
}

nlohmann::json parse_flat(const std::string& path, const std::string& text) {
  const auto limit_depth = [&](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
    if (depth > 4) throw DataError(fmt::format("{}: nested deeper than an index is", path));
    return true;
  };
  if (text.find('\0') != std::string::npos)  // the JSON library takes it for the end of its input
    throw DataError(fmt::format("{}: not JSON: a zero byte at offset {}", path, text.find('\0')));
  try {
    return nlohmann::json::parse(text, limit_depth);
  } catch (const nlohmann::json::exception& error) {
    throw DataError(fmt::format("{}: not JSON: {}", path, error.what()));
  }
}

}  // namespace

bool is_safetensors_index(const std::string& path) {
  return path.size() >= kSafetensorsIndexEnd.size() &&
         path.compare(path.size() - kSafetensorsIndexEnd.size(), kSafetensorsIndexEnd.size(),
                      kSafetensorsIndexEnd) == 0;
}

SafetensorsIndex read_safetensors_index(const std::string& path) {
  return parse_safetensors_index(path, read_text(path));
}

SafetensorsIndex parse_safetensors_index(const std::string& path, const std::string& text) {
  const nlohmann::json json = parse_flat(path, text);
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

}  // namespace starling
