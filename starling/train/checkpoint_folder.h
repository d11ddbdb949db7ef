// The folder of one checkpoint on disk, RUN/checkpoints/step-000100/, and the rules that keep it whole:
//
//   - A writer fills the folder under a temporary name (.writing-step-000100-EPOCH-PID, with the lock's epoch
//     and the process id) and fsyncs every file. It writes manifest.json last, with the size and the XXH3
//     hash of every other file. Then one rename gives the folder its name. A folder of that name is therefore
//     complete, however the writer ended. The hashes show later damage.
//   - A folder is renamed before it is deleted, so that no reader finds it half deleted.
//   - A writer deletes only whole checkpoints of its own lineage. It renames a damaged checkpoint to
//     damaged-step-000100 and one of another lineage that is in its way to aside-step-000100.
//
// One process at a time writes in a run folder: the holder of its lock (job/folder_lock.h). Any process
// may read. The manifest has a format version. This program reads the versions 1 and 2 and writes version 2,
// which adds the lineage and a hash of the manifest itself.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "starling/train/checkpoint_lineage.h"

namespace starling {

// A function that is called before each step of writing, with the step's name ("model.safetensors",
// "manifest.json", "rename", "replace", "prune"). "replace" comes only on file systems that cannot exchange
// two folders, while the replaced folder has no name of a checkpoint. Tests end the process or throw in it.
// May be empty.
using IoStep = std::function<void(std::string_view step)>;

// A checkpoint's step and folder.
struct CheckpointFolder {
  int64_t step = 0;
  std::filesystem::path path;
};

// Returns the path of the checkpoint of `step`.
std::filesystem::path checkpoint_path(const std::filesystem::path& run_dir, int64_t step);

// Returns true if there is something at the path, and also if that cannot be told now.
bool may_exist(const std::filesystem::path& path);

// Returns the folders under run_dir/checkpoints that have a checkpoint's name, newest first, whether whole or
// not. Errors: Error (kCheckpoint) if the folder is there, but cannot be listed now, or if it is a link to a
// folder that is not there.
std::vector<CheckpointFolder> list_checkpoints(const std::filesystem::path& run_dir);

// Returns the names of the folders under run_dir/checkpoints that were checkpoints and were renamed to
// damaged-step-N or aside-step-N, in the order of the alphabet.
std::vector<std::string> list_renamed_checkpoints(const std::filesystem::path& run_dir);

// What is known of a checkpoint's folder.
struct CheckpointCheck {
  std::string damage;       // why it is not whole ("model.safetensors has 812 bytes, the manifest says 4096")
  bool unreadable = false;  // a file cannot be read now, which `damage` says; the file may be whole
  bool newer = false;       // its format version is above those that this program reads; `damage` is empty
  int64_t version = 0;      // its format version, 0 if the manifest cannot be read
  Lineage lineage;          // empty if unknown
  bool whole() const { return damage.empty() && !newer; }
  // Returns why it cannot be used, in words that tell damage from what cannot be read now. Empty if it is
  // whole.
  std::string problem() const;
};

// Checks a checkpoint. If `hashes` is false, the function compares only the sizes of its files.
CheckpointCheck check_checkpoint(const std::filesystem::path& folder, bool hashes = true);

// The format version that this program writes, the highest that it reads.
int64_t newest_checkpoint_version();

// Receives one complete sentence for the user.
using Say = std::function<void(const std::string& text)>;

// The largest number of levels in the JSON files of a checkpoint.
constexpr int kDeepestJson = 8;

// Renames every checkpoint above `step`, because a run goes on after `step` and will write these steps anew.
// A damaged checkpoint becomes damaged-step-N. A whole checkpoint and one that cannot be read now become
// aside-step-N. Says each new name. Errors: Error (kCheckpoint).
void set_aside_above(const std::filesystem::path& run_dir, int64_t step, const Say& say);

// Renames the checkpoints above `step` that are not of the lineage `own` to aside-step-N, because the run of
// that lineage continued `step`. Says each new name. Checkpoints that are damaged or cannot be read now stay
// as they are if that hides their lineage. `before` is called before each renaming, with the step "aside". It
// throws if another process has taken the lock, and nothing more is renamed then. Errors: Error
// (kCheckpoint).
void set_aside_foreign(const std::filesystem::path& run_dir, int64_t step, const Lineage& own, const Say& say,
                       const IoStep& before = {});

// Removes the folders that killed writers have left behind: temporary ones, and those that they were
// deleting. A writer that was only suspended fails when it continues. Only the holder of the run folder's
// lock may call this function. `before` is called before each removal, with the step "prune". It throws if
// another process has taken the lock, and nothing more is removed then. Temporary folders of a writer with a
// higher epoch of the lock than `epoch` stay: that writer is a later holder. A checkpoint that a killed
// writer was replacing gets its name back. Errors: Error (kCheckpoint) if it cannot be renamed.
void remove_leftovers(const std::filesystem::path& run_dir, const IoStep& before = {},
                      int64_t epoch = std::numeric_limits<int64_t>::max());

// Calls remove_leftovers() with the lineage's epoch, and removes all but the newest `keep` whole checkpoints
// of the lineage. A kept checkpoint is whole if its files have the manifest's hashes; `verified` is a step
// whose files need no check. Renames damaged checkpoints of any lineage to damaged-step-N and says so.
// Checkpoints that cannot be read now, and other checkpoints of another or of an unknown lineage, stay as
// they are. `before` is called before each removal and renaming, as by remove_leftovers().
void prune_checkpoints(const std::filesystem::path& run_dir, int64_t keep, const Lineage& lineage,
                       int64_t verified, const Say& say, const IoStep& before = {});

// A checkpoint that is being written. Without commit(), the destructor removes it. Errors of all members:
// Error (kCheckpoint) with the path and the cause.
class CheckpointFolderWriter {
 public:
  // Creates the temporary folder, whose name no other writer uses.
  CheckpointFolderWriter(const std::filesystem::path& run_dir, int64_t step, Lineage lineage = {},
                         IoStep before = {});
  ~CheckpointFolderWriter();
  CheckpointFolderWriter(const CheckpointFolderWriter&) = delete;
  CheckpointFolderWriter& operator=(const CheckpointFolderWriter&) = delete;

  // Adds a file: write(path) must create the file and fsync it.
  void add(const std::string& name, const std::function<void(const std::string& path)>& write);
  // Adds a file with this text.
  void add_text(const std::string& name, const std::string& text);
  // Writes the manifest and gives the folder its name. Returns the path. An existing folder of that name is
  // replaced if this incarnation wrote it, or if it is a whole checkpoint of the lineage. Otherwise it is
  // renamed: a damaged one to damaged-step-N, and one of another or an unknown lineage to aside-step-N. `say`
  // receives the new name.
  std::filesystem::path commit(const Say& say = {});

 private:
  std::filesystem::path temporary_;
  std::filesystem::path final_;
  const int64_t step_;
  const Lineage lineage_;
  IoStep before_;
  std::vector<std::string> names_;
};

}  // namespace starling
