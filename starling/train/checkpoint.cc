#include "starling/train/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <nlohmann/json.hpp>

#include "starling/base/error.h"
#include "starling/base/json_depth.h"
#include "starling/base/json_number.h"
#include "starling/base/read_file.h"

namespace starling {
namespace fs = std::filesystem;
using nlohmann::json;
namespace {

constexpr char kSeparator = '/';  // stands between a tensor's name and its state's name

[[noreturn]] void fail(const fs::path& folder, const std::string& what) {
  throw Error(ErrorCode::kCheckpoint,
              fmt::format("{}: {}; give another checkpoint. A run starts anew by --resume never",
                          folder.string(), what));
}

[[noreturn]] void refuse_newer(const fs::path& folder, const CheckpointCheck& check) {
  throw Error(
      ErrorCode::kCheckpoint,
      fmt::format("{}: the checkpoint is newer than this Starling: it has format version {}, and this "
                  "Starling reads 1 to {}; use the newer Starling. A run starts anew by --resume never",
                  folder.string(), check.version, newest_checkpoint_version()));
}

[[noreturn]] void refuse_unreadable(const std::string& why) {
  throw Error(ErrorCode::kCheckpoint,
              fmt::format("{}. The checkpoint may be whole. Repeat the command when the file can be read, or "
                          "give another checkpoint",
                          why));
}

json slice_to_json(const std::string& name, const StoredTensor& tensor) {
  const auto shape = tensor.value.sizes().vec();
  return {{"name", name},
          {"global_shape", tensor.global_shape.empty() ? shape : tensor.global_shape},
          {"offset", tensor.offset.empty() ? std::vector<int64_t>(shape.size(), 0) : tensor.offset}};
}

// Returns the stored tensor with its slice. Throws if the slice does not lie inside the tensor that it
// belongs to.
StoredTensor with_slice(const fs::path& folder, const std::string& key, const at::Tensor& value,
                        const json& slices) {
  const json& slice = slices.at(key);
  StoredTensor tensor{value, integers_of<int64_t>(slice.at("global_shape")),
                      integers_of<int64_t>(slice.at("offset"))};
  const size_t dims = static_cast<size_t>(value.dim());
  bool fits = tensor.global_shape.size() == dims && tensor.offset.size() == dims;
  for (size_t d = 0; fits && d < dims; ++d) {
    const int64_t extent = value.size(static_cast<int64_t>(d));
    fits = tensor.offset[d] >= 0 && extent <= tensor.global_shape[d] &&
           tensor.offset[d] <= tensor.global_shape[d] - extent;
  }
  if (!fits) fail(folder, fmt::format("the slice of {} does not fit its tensor", key));
  return tensor;
}

void write_model(const std::string& path, const CheckpointState& state) {
  TensorMap tensors;
  json slices = json::object();
  for (const auto& [name, tensor] : state.model) {
    tensors[name] = tensor.value;
    slices[name] = slice_to_json(name, tensor);
  }
  write_safetensors(path, tensors, {{"format", "pt"}, {"slices", slices.dump()}});
}

void write_optimizer(const std::string& path, const CheckpointState& state) {
  TensorMap tensors;
  json slices = json::object();
  for (const auto& [name, states] : state.optimizer)
    for (const auto& [state_name, tensor] : states) {
      const std::string key = name + kSeparator + state_name;
      tensors[key] = tensor.value;
      slices[key] = slice_to_json(name, tensor);
      slices[key]["state"] = state_name;
    }
  write_safetensors(path, tensors, {{"slices", slices.dump()}});
}

void write_ranks(const std::string& path, const CheckpointState& state) {
  TensorMap tensors;
  json owners = json::object();
  for (const auto& [coordinate, held] : state.ranks)
    for (const auto& [name, tensor] : held) {
      const std::string key = coordinate + kSeparator + name;
      tensors[key] = tensor;
      owners[key] = {{"coordinate", coordinate}, {"name", name}};
    }
  write_safetensors(path, tensors, {{"owners", owners.dump()}});
}

void read_all(const fs::path& folder, CheckpointState& state) {
  const fs::path path = folder / "state.json";
  const FileText text = read_file(path.string());
  if (text.error != 0)
    refuse_unreadable(fmt::format("{}: cannot be read now: {}", path.string(), text.reason()));
  static_cast<CheckpointScalars&>(state) = parse_checkpoint_scalars(path.string(), text.text);
  const TensorFile model = read_safetensors((folder / "model.safetensors").string());
  json slices = parse_shallow<json>(model.metadata.at("slices"), kDeepestJson);
  for (const auto& [name, value] : model.tensors) state.model[name] = with_slice(folder, name, value, slices);
  const TensorFile optimizer = read_safetensors((folder / "optimizer.safetensors").string());
  slices = parse_shallow<json>(optimizer.metadata.at("slices"), kDeepestJson);
  for (const auto& [key, value] : optimizer.tensors) {
    const json& slice = slices.at(key);
    state.optimizer[slice.at("name").get<std::string>()][slice.at("state").get<std::string>()] =
        with_slice(folder, key, value, slices);
  }
  const TensorFile ranks = read_safetensors((folder / "ranks.safetensors").string());
  const json owners = parse_shallow<json>(ranks.metadata.at("owners"), kDeepestJson);
  for (const auto& [key, value] : ranks.tensors) {
    const json& owner = owners.at(key);
    state.ranks[owner.at("coordinate").get<std::string>()][owner.at("name").get<std::string>()] = value;
  }
}

}  // namespace

fs::path write_checkpoint(const fs::path& run_dir, const CheckpointState& state,
                          const CheckpointOptions& options) {
  CheckpointFolderWriter folder(run_dir, state.step, options.lineage, options.before);
  folder.add("model.safetensors", [&](const std::string& path) { write_model(path, state); });
  folder.add("optimizer.safetensors", [&](const std::string& path) { write_optimizer(path, state); });
  folder.add("ranks.safetensors", [&](const std::string& path) { write_ranks(path, state); });
  folder.add_text("state.json", write_checkpoint_scalars(state));
  fs::path path = folder.commit(options.say);
  if (options.before) options.before("prune");
  try {
    prune_checkpoints(run_dir, std::max<int64_t>(1, options.keep), options.lineage, state.step, options.say,
                      options.before);
  } catch (const std::exception& error) {  // the new checkpoint is whole
    if (options.say) options.say(fmt::format("older checkpoints could not be removed: {}", error.what()));
  }
  return path;
}

std::optional<CheckpointFolder> newest_whole(const fs::path& run_dir, std::vector<PassedCheckpoint>* passed) {
  for (auto& folder : list_checkpoints(run_dir)) {
    const CheckpointCheck check = check_checkpoint(folder.path);
    if (check.newer) refuse_newer(folder.path, check);
    if (check.whole()) return folder;
    const std::string where = check.unreadable ? "" : folder.path.string() + ": ";  // `damage` has the path
    if (passed != nullptr) passed->push_back({where + check.problem(), folder.step, check.unreadable});
  }
  return std::nullopt;
}

CheckpointState read_checkpoint(const fs::path& folder) {
  const CheckpointCheck check = check_checkpoint(folder);
  if (check.newer) refuse_newer(folder, check);
  if (check.unreadable) refuse_unreadable(check.damage);
  if (!check.whole()) fail(folder, check.problem());
  CheckpointState state;
  state.lineage = check.lineage;
  try {
    read_all(folder, state);
  } catch (const json::exception& error) {
    fail(folder, fmt::format("malformed: {}", error.what()));
  } catch (const std::out_of_range&) {
    fail(folder, "malformed: a file lacks its metadata");
  }
  return state;
}

}  // namespace starling
