#include "starling/run/folder/run_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <optional>
#include <string_view>

#include "starling/base/error.h"
#include "starling/nn/safetensors/safetensors.h"
#include "starling/spec/schema.h"
#include "starling/telemetry/output.h"
#include "starling/telemetry/text_style.h"

namespace starling {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWhere = "RUN_DIR";
constexpr std::string_view kTheCheckpoint = "the checkpoint";

int64_t step_of(const std::map<std::string, std::string>& metadata) {
  int64_t step = 0;
  if (const auto it = metadata.find("step"); it != metadata.end())
    std::from_chars(it->second.data(), it->second.data() + it->second.size(), step);
  return step;
}

// Reads the configuration of a run folder. Returns nothing if there is none.
std::optional<RunSpec> configuration_in(const fs::path& folder) {
  const fs::path file = folder / kConfigFile;
  if (!fs::exists(file)) return std::nullopt;
  Config config;
  apply_toml_file(config, file.string());
  if (!is_given(config.origins, "model.name")) config.spec.model.name = kUserModel;
  return config.spec;
}

RunWeights weights_of_checkpoint(const fs::path& folder, int64_t step) {
  RunWeights weights;
  const CheckpointState state = read_checkpoint(folder);
  weights.spec = state.spec;
  weights.file = (folder / kWeightsFile).string();
  weights.step = step > 0 ? step : state.step;
  return weights;
}

// Warns on standard error of each checkpoint that is newer than what is taken, which has `step` updates.
void warn_of_newer(const std::vector<PassedCheckpoint>& passed, int64_t step, std::string_view taken) {
  for (const PassedCheckpoint& checkpoint : passed) {
    if (checkpoint.step > step)
      FdOutput(2).write(fmt::format("starling: warning: {}; taking {} of step {}\n",
                                    printable(checkpoint.text), taken, step));
  }
}

RunWeights weights_in(const fs::path& folder) {
  std::vector<PassedCheckpoint> passed;
  const std::optional<CheckpointFolder> newest = newest_whole(folder, &passed);
  const auto of_newest = [&] {
    warn_of_newer(passed, newest->step, kTheCheckpoint);
    return weights_of_checkpoint(newest->path, newest->step);
  };
  const fs::path file = folder / kWeightsFile;
  if (!fs::exists(file)) {
    if (newest) return of_newest();
    if (!passed.empty())
      throw Error(ErrorCode::kCheckpoint,
                  fmt::format("{}. {} has neither {} nor a whole checkpoint. Give the "
                              "folder of another run, or --init FILE",
                              passed.front().text, folder.string(), kWeightsFile));
    throw ConfigError(
        kWhere,
        fmt::format("{} holds no weights: neither {} nor a whole checkpoint. Give the folder of a run "
                    "that has ended or written a checkpoint, or --init FILE",
                    folder.string(), kWeightsFile));
  }
  RunWeights weights;
  const std::map<std::string, std::string> metadata = read_safetensors(file.string()).metadata;
  weights.file = file.string();
  weights.step = step_of(metadata);
  if (const auto it = metadata.find("vocabulary"); it != metadata.end()) weights.vocabulary = it->second;
  if (newest && newest->step > weights.step) {  // a resumed run that has not ended
    const std::string vocabulary = weights.vocabulary;
    weights = of_newest();
    weights.vocabulary = vocabulary;
    return weights;
  }
  warn_of_newer(passed, weights.step, kWeightsFile);
  const std::optional<RunSpec> spec = configuration_in(folder);
  if (!spec && !newest)
    throw ConfigError(kWhere, fmt::format("{} has no {}. Give the configuration by flags and the weights by "
                                          "--init {}",
                                          folder.string(), kConfigFile, weights.file));
  weights.spec = spec ? *spec : read_checkpoint(newest->path).spec;
  return weights;
}

}  // namespace

std::optional<CheckpointFolder> newest_or_warn(const fs::path& run_dir,
                                               std::vector<PassedCheckpoint>& passed) {
  std::optional<CheckpointFolder> newest = newest_whole(run_dir, &passed);
  if (newest) warn_of_newer(passed, newest->step, kTheCheckpoint);
  return newest;
}

RunWeights find_run_weights(const std::string& folder) {
  if (!fs::is_directory(folder))
    throw ConfigError(kWhere,
                      fmt::format("{} is no folder. Give a run folder or one of its checkpoints", folder));
  RunWeights weights =
      may_exist(fs::path(folder) / "manifest.json") ? weights_of_checkpoint(folder, 0) : weights_in(folder);
  if (weights.spec.model.name == kUserModel)
    throw ConfigError(kWhere,
                      fmt::format("{} is the run of a program of your own, whose model is not known here. "
                                  "Give the weights to that program: --init {}",
                                  folder, weights.file));
  return weights;
}

Config evaluation_of(const RunWeights& weights, const std::string& folder) {
  // The ranks of an evaluation do not exchange statistics, and each sample belongs to all of them.
  static constexpr std::string_view kLeftOut[] = {"model.init", "model.batch_norm", "data.partition",
                                                  "data.share"};
  static constexpr std::string_view kTaken[] = {"train.seed", "train.eval_batch", "comm.security"};
  Config config;
  for (const SchemaEntry& entry : schema()) {
    const bool of_section = entry.section == Section::kModel || entry.section == Section::kData;
    const auto is_in = [&](const auto& keys) {
      return std::find(std::begin(keys), std::end(keys), entry.key) != std::end(keys);
    };
    if ((of_section && !is_in(kLeftOut)) || is_in(kTaken)) apply_earlier(config, entry, weights.spec, folder);
  }
  if (weights.spec.train.precision == Precision::kFp64)
    apply_earlier(config, *find_entry("train.precision"), weights.spec, folder);
  config.spec.model.init = weights.file;
  config.origins["model.init"] = {OriginKind::kCode, folder};
  return config;
}

}  // namespace starling
