// The folder of one checkpoint on disk, RUN/checkpoints/step-000100/, and the rules that keep it whole:
//
//   - It is filled under another name beside its place (.writing-step-000100), every file fsynced; manifest.json, with
//     the size and the XXH3 hash of every other file, comes last; then one rename gives it its name. So a folder of that
//     name is complete however the writer ended, and the hashes tell damage that came later.
//   - A folder goes away by a rename first, so that it is never seen half deleted.
// One process writes in a run folder at a time (rank 0); any may read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace starling {

// Called before each step of writing with its name ("model.safetensors", "manifest.json", "rename", "prune"); tests end
// the process or throw in it. May be empty.
using IoStep = std::function<void(std::string_view step)>;

struct CheckpointFolder {
  int64_t step = 0;
  std::filesystem::path path;
};

std::filesystem::path checkpoint_path(const std::filesystem::path& run_dir, int64_t step);

// The folders under run_dir/checkpoints that bear a checkpoint's name, newest first, whole or not.
std::vector<CheckpointFolder> list_checkpoints(const std::filesystem::path& run_dir);

// Why the folder is not a whole checkpoint ("model.safetensors has 812 bytes, the manifest says 4096"); empty if it is.
// hashes: false compares the sizes alone.
std::string damage_of(const std::filesystem::path& folder, bool hashes = true);

// Removes what killed writers left and all but the newest `keep` complete folders (by their sizes).
void prune_checkpoints(const std::filesystem::path& run_dir, int64_t keep);

// A checkpoint being written. Without commit() the destructor removes what there is.
// Errors of all members: Error (kCheckpoint) with the path and the cause.
class CheckpointFolderWriter {
 public:
  CheckpointFolderWriter(const std::filesystem::path& run_dir, int64_t step, IoStep before = {});
  ~CheckpointFolderWriter();
  CheckpointFolderWriter(const CheckpointFolderWriter&) = delete;
  CheckpointFolderWriter& operator=(const CheckpointFolderWriter&) = delete;

  // write(path) must create the file and fsync it.
  void add(const std::string& name, const std::function<void(const std::string& path)>& write);
  void add_text(const std::string& name, const std::string& text);
  // Writes the manifest and gives the folder its name, in exchange for one that has it already. Returns its path.
  std::filesystem::path commit();

 private:
  std::filesystem::path temporary_;
  std::filesystem::path final_;
  IoStep before_;
  std::vector<std::string> names_;
};

}  // namespace starling
