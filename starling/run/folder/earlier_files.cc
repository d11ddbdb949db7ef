#include "starling/run/folder/earlier_files.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <system_error>
#include <vector>

#include "starling/base/error.h"
#include "starling/train/checkpoint_folder.h"

namespace starling {
namespace fs = std::filesystem;
namespace {

// A file of a run: NAME, and NAME.N with the suffix behind it when it is set aside. SQLite has three files.
struct RunFile {
  const char* stem;
  const char* suffix;
};

constexpr RunFile kRunFiles[] = {{"checkpoints", ""},    {"events", ".jsonl"},      {"run", ".sqlite"},
                                 {"run", ".sqlite-wal"}, {"run", ".sqlite-shm"},    {"timeline", ".json"},
                                 {"result", ".json"},    {"model", ".safetensors"}, {"model", ".compressed"},
                                 {"tensorboard", ""}};
// A configuration is copied, because the new run may read it (-c).
constexpr RunFile kConfiguration = {"config", ".toml"};

fs::path present(const fs::path& run_dir, const RunFile& file) {
  return run_dir / (std::string(file.stem) + file.suffix);
}

fs::path aside(const fs::path& run_dir, const RunFile& file, int number) {
  return run_dir / fmt::format("{}.{}{}", file.stem, number, file.suffix);
}

// Returns true if the run continues an earlier one in the folder. Errors: Error (kCheckpoint) if `resume` is
// auto and the folder has only checkpoints that were renamed.
bool continues(const fs::path& run_dir, const std::string& resume) {
  if (resume == "never") return false;
  if (resume != "auto") return is_inside_run(run_dir, resume);
  if (!list_checkpoints(run_dir).empty()) return true;
  const std::vector<std::string> renamed = list_renamed_checkpoints(run_dir);
  if (renamed.empty()) return false;
  throw Error(
      ErrorCode::kCheckpoint,
      fmt::format("{}: no checkpoint has its name any more, and nothing was changed. Renamed "
                  "checkpoints are there: {}. Give one of them by --resume PATH, or --resume never to "
                  "start anew at step 0",
                  (run_dir / "checkpoints").string(), fmt::join(renamed, ", ")));
}

// Returns true if there is such a file. An empty folder, for example of checkpoints, does not count.
bool is_left(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error) && !(fs::is_directory(path, error) && fs::is_empty(path, error));
}

// Returns true if there is such a file. Errors: Error (kCheckpoint) if that cannot be told.
bool is_taken(const fs::path& path) {
  std::error_code error;
  const bool there = fs::exists(path, error);
  if (error)
    throw Error(ErrorCode::kCheckpoint,
                fmt::format("{}: cannot tell whether it exists: {}; give another folder by --run-dir",
                            path.string(), error.message()));
  return there;
}

}  // namespace

bool is_inside_run(const fs::path& run_dir, const fs::path& path) {
  std::error_code error;
  const fs::path run = fs::weakly_canonical(run_dir, error), inner = fs::weakly_canonical(path, error);
  // The folder of checkpoints may be a symbolic link to a larger disk.
  const fs::path checkpoints = fs::weakly_canonical(run_dir / "checkpoints", error);
  return inner == run || inner == checkpoints || inner.parent_path() == checkpoints;
}

bool is_below_run(const fs::path& run_dir, const fs::path& path) {
  std::error_code error;
  fs::path inner = fs::absolute(path, error);
  if (!error) inner = fs::weakly_canonical(inner, error);
  if (error) return true;  // unknown
  for (; !is_inside_run(run_dir, inner); inner = inner.parent_path()) {
    if (!inner.has_relative_path()) return false;
  }
  return true;
}

std::string set_aside_earlier_files(const fs::path& run_dir, const std::string& resume) {
  if (continues(run_dir, resume)) return "";
  std::vector<RunFile> found;
  for (const RunFile& file : kRunFiles) {
    if (is_left(present(run_dir, file))) found.push_back(file);
  }
  if (found.empty()) return "";
  int number = 1;
  const auto taken = [&](const RunFile& file) { return is_taken(aside(run_dir, file, number)); };
  while (std::any_of(std::begin(kRunFiles), std::end(kRunFiles), taken) || taken(kConfiguration)) ++number;
  std::vector<std::string> names;
  for (const RunFile& file : found) {
    const fs::path to = aside(run_dir, file, number);
    std::error_code error;
    fs::rename(present(run_dir, file), to, error);
    if (error)
      throw Error(ErrorCode::kCheckpoint,
                  fmt::format("{}: cannot rename it to {}: {}; give another folder by --run-dir",
                              present(run_dir, file).string(), to.filename().string(), error.message()));
    names.push_back(to.filename().string());
  }
  const fs::path config = present(run_dir, kConfiguration);
  if (std::error_code error; fs::exists(config, error)) {
    fs::copy_file(config, aside(run_dir, kConfiguration, number), error);
    if (!error) names.push_back(aside(run_dir, kConfiguration, number).filename().string());
  }
  return fmt::format("files of an earlier run in {} were renamed to {}", run_dir.string(),
                     fmt::join(names, ", "));
}

}  // namespace starling
