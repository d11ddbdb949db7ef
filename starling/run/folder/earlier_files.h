// Sets aside what an earlier run has left in a run folder, so that a new run does not mix its files with it.
#pragma once

#include <filesystem>
#include <string>

namespace starling {

// Renames the files of an earlier run: its checkpoints, events, SQLite file, timeline, result, weights and
// TensorBoard files. checkpoints becomes checkpoints.N, events.jsonl becomes events.N.jsonl, and so on. N is
// the lowest number that is free for all files. config.toml is copied to config.N.toml, because the new run
// may read it. An empty folder stays. Does nothing if `resume` (run.resume) continues a checkpoint of this
// folder.
//
// Returns a sentence that names the new files, or an empty string if nothing was renamed. Only the holder of
// the folder's lock may call this. Errors: Error (kCheckpoint) if a file cannot be renamed, or if `resume` is
// auto and the only checkpoints are renamed ones (damaged-step-N, aside-step-N).
std::string set_aside_earlier_files(const std::filesystem::path& run_dir, const std::string& resume);

// Returns true if `path` is the run folder, its folder of checkpoints or one of its checkpoints. The folder
// of checkpoints may be a symbolic link.
bool is_inside_run(const std::filesystem::path& run_dir, const std::filesystem::path& path);

// Returns true if `path` is the run folder, its folder of checkpoints, or anything below one of them.
bool is_below_run(const std::filesystem::path& run_dir, const std::filesystem::path& path);

}  // namespace starling
