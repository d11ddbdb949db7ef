#include "starling/train/checkpoint_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdio.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <system_error>

#include "starling/base/atomic_file.h"
#include "starling/base/error.h"
#include "starling/base/json_depth.h"
#include "starling/base/json_number.h"
#include "starling/base/read_file.h"
#include "starling/base/unique_fd.h"

namespace starling {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kWriting = ".writing-";
constexpr std::string_view kOld = ".old-";
constexpr std::string_view kReplaced = ".replaced-";
constexpr std::string_view kDamaged = "damaged-";
constexpr std::string_view kAside = "aside-";
constexpr std::string_view kPrune = "prune";
constexpr const char* kManifest = "manifest.json";
constexpr const char* kManifestHash = "manifest_xxh3";
constexpr int64_t kVersion = 2;

[[noreturn]] void fail(const fs::path& path, const std::string& what, int error) {
  const bool full = error == ENOSPC || error == EDQUOT;
  throw Error(ErrorCode::kCheckpoint,
              fmt::format("{}: cannot {}: {}; {}checkpoints written before are unchanged", path.string(),
                          what, std::strerror(error), full ? "free space or give another folder; " : ""));
}

[[noreturn]] void fail_reading(const fs::path& path, int error) {
  throw Error(ErrorCode::kCheckpoint,
              fmt::format("{}: cannot be read now: {}", path.string(), std::strerror(error)));
}

// Throws if the path is a link to what does not exist now, such as a folder on a drive that is not mounted.
void refuse_broken_link(const fs::path& path) {
  std::error_code error;
  const fs::path target = fs::read_symlink(path, error);
  if (error) return;
  throw Error(
      ErrorCode::kCheckpoint,
      fmt::format("{}: is a link to {}, which is not there now; mount its drive, make that folder, or "
                  "remove the link to start anew",
                  path.string(), target.string()));
}

void sync_folder(const fs::path& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid() || ::fsync(fd.get()) != 0) fail(path, "write the folder to the disk", errno);
}

std::string hash_text(const XXH128_hash_t& hash) {
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

// Returns the hash of a manifest without its own hash.
std::string hash_of_manifest(nlohmann::json manifest) {
  manifest.erase(kManifestHash);
  const std::string text = manifest.dump();
  return hash_text(XXH3_128bits(text.data(), text.size()));
}

// Returns the XXH3 hash (128 bits) of a file as 32 hexadecimal digits.
std::string hash_of(const fs::path& path) {
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(), &XXH3_freeState);
  XXH3_128bits_reset(state.get());
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) fail_reading(path, errno);
  std::vector<char> buffer(size_t{1} << 20);
  for (;;) {
    const ssize_t n = ::read(fd.get(), buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_reading(path, errno);
    if (n == 0) break;
    XXH3_128bits_update(state.get(), buffer.data(), static_cast<size_t>(n));
  }
  return hash_text(XXH3_128bits_digest(state.get()));
}

// Renames `from` to `to`. If `to` exists, it gets the name of `from`. This is one atomic step if the file
// system supports it. Otherwise `to` is called .replaced-NAME meanwhile, and remove_leftovers() gives it its
// name back if the process ends there.
void exchange(const fs::path& from, const fs::path& to, const IoStep& before) {
  if (!fs::exists(to)) {
    if (::rename(from.c_str(), to.c_str()) != 0) fail(to, "rename the new folder to it", errno);
    return;
  }
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) return;
  if (errno != EINVAL && errno != ENOSYS) fail(to, "replace it by the new folder", errno);
  const fs::path aside = to.parent_path() / (std::string(kReplaced) + to.filename().string());
  std::error_code ignored;
  fs::remove_all(aside, ignored);
  if (::rename(to.c_str(), aside.c_str()) != 0) fail(to, "replace it by the new folder", errno);
  try {
    if (before) before("replace");
    if (::rename(from.c_str(), to.c_str()) != 0) fail(to, "replace it by the new folder", errno);
  } catch (...) {
    ::rename(aside.c_str(), to.c_str());
    throw;
  }
  ::rename(aside.c_str(), from.c_str());  // remove_leftovers() removes it otherwise
}

bool begins_with(const std::string& name, std::string_view prefix) {
  return name.compare(0, prefix.size(), prefix) == 0;
}

// Renames a folder to a hidden name and deletes it. What cannot be deleted keeps the hidden name until the
// next attempt.
void remove_folder(const fs::path& path) {
  fs::path hidden = path;
  if (!begins_with(path.filename().string(), ".")) {
    hidden = path.parent_path() / (std::string(kOld) + path.filename().string());
    std::error_code ignored;
    fs::remove_all(hidden, ignored);
    if (::rename(path.c_str(), hidden.c_str()) != 0) return;
  }
  std::error_code ignored;
  fs::remove_all(hidden, ignored);
}

// Returns true if the error (errno) means that there is no such file. After any other error, the file may be
// readable later.
bool is_missing(int error) {
  return error == ENOENT || error == ENOTDIR;
}

std::string damage_of_file(const fs::path& folder, const std::string& name, const nlohmann::json& entry,
                           bool hashes) {
  if (name.empty() || name.find('/') != std::string::npos)
    return fmt::format("the manifest names '{}'", name);
  std::error_code error;
  const auto size = fs::file_size(folder / name, error);
  if (is_missing(error.value())) return fmt::format("{} is missing", name);
  if (error) fail_reading(folder / name, error.value());
  if (size != integer_of<uint64_t>(entry.at("bytes")))
    return fmt::format("{} has {} bytes, the manifest says {}", name, size,
                       integer_of<uint64_t>(entry.at("bytes")));
  if (hashes && hash_of(folder / name) != entry.at("xxh3").get<std::string>())
    return fmt::format("the content of {} does not have the manifest's hash", name);
  return "";
}

// Returns why the manifest cannot be used, or an empty string. Sets the version and `newer` of `check`.
std::string damage_of_manifest(const nlohmann::json& manifest, CheckpointCheck& check) {
  if (manifest.at("format") != "starling-checkpoint") return "manifest.json is not that of a checkpoint";
  check.version = integer_of<int64_t>(manifest.at("version"));
  if (check.version < 1) return fmt::format("the manifest has format version {}", check.version);
  // The hash comes before the version is believed. Otherwise a damaged version would hide that an older
  // checkpoint must be used. A newer format may have no hash of this kind.
  const auto hash = manifest.find(kManifestHash);
  const bool needs_hash = check.version >= 2 && check.version <= kVersion;
  if (hash == manifest.end() ? needs_hash : *hash != hash_of_manifest(manifest))
    return "the content of manifest.json does not have the manifest's hash";
  check.newer = check.version > kVersion;
  if (check.newer) return "";
  return manifest.at("files").empty() ? "the manifest names no files" : "";
}

// Renames step-N to PREFIXstep-N, or to PREFIXstep-N.2 if that exists, and so on. Returns the new path.
fs::path rename_with(std::string_view prefix, const fs::path& folder) {
  const std::string name = std::string(prefix) + folder.filename().string();
  fs::path to = folder.parent_path() / name;
  std::error_code unknown;  // the renaming then fails, because a folder that holds files is never replaced
  for (int i = 2; fs::exists(to, unknown); ++i) to = folder.parent_path() / fmt::format("{}.{}", name, i);
  if (::rename(folder.c_str(), to.c_str()) != 0) fail(folder, "rename it", errno);
  return to;
}

void rename_damaged(const fs::path& folder, const std::string& damage, const Say& say) {
  const fs::path to = rename_with(kDamaged, folder);
  if (say)
    say(fmt::format("{} is damaged ({}) and was renamed to {}", folder.string(), damage,
                    to.filename().string()));
}

void rename_foreign(const fs::path& folder, const Say& say) {
  const fs::path to = rename_with(kAside, folder);
  if (say)
    say(fmt::format("{} was written by another run or start and was renamed to {}", folder.string(),
                    to.filename().string()));
}

void rename_unreadable(const fs::path& folder, const std::string& why, const Say& say) {
  const fs::path to = rename_with(kAside, folder);
  if (say) say(fmt::format("{} was renamed to {}: {}", folder.string(), to.filename().string(), why));
}

// Returns the epoch in the name of a temporary folder, .writing-step-000100-EPOCH-PID, or 0 if there is none.
int64_t epoch_of_writer(const std::string& name) {
  const size_t pid = name.rfind('-');
  const size_t dash = name.rfind('-', pid - 1);
  int64_t epoch = 0;
  const auto parsed = std::from_chars(name.data() + dash + 1, name.data() + pid, epoch);
  return parsed.ec == std::errc() && parsed.ptr == name.data() + pid ? epoch : 0;
}

}  // namespace

fs::path checkpoint_path(const fs::path& run_dir, int64_t step) {
  return run_dir / "checkpoints" / fmt::format("{}{:06}", kPrefix, step);
}

bool may_exist(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error) || (error && !is_missing(error.value()));
}

std::vector<CheckpointFolder> list_checkpoints(const fs::path& run_dir) {
  std::vector<CheckpointFolder> found;
  std::error_code error;
  for (fs::directory_iterator it(run_dir / "checkpoints", error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (!begins_with(name, kPrefix)) continue;
    int64_t step = 0;
    const char* last = name.data() + name.size();
    const auto parsed = std::from_chars(name.data() + kPrefix.size(), last, step);
    if (parsed.ec == std::errc() && parsed.ptr == last && step >= 0) found.push_back({step, it->path()});
  }
  if (error && !is_missing(error.value())) fail_reading(run_dir / "checkpoints", error.value());
  if (error.value() == ENOENT) refuse_broken_link(run_dir / "checkpoints");
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.step > b.step; });
  return found;
}

std::vector<std::string> list_renamed_checkpoints(const fs::path& run_dir) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(run_dir / "checkpoints", error), end; !error && it != end;
       it.increment(error)) {
    std::string name = it->path().filename().string();
    const size_t dash = name.find('-') + 1;
    const bool renamed = begins_with(name, kDamaged) || begins_with(name, kAside);
    if (renamed && begins_with(name.substr(dash), kPrefix)) names.push_back(std::move(name));
  }
  std::sort(names.begin(), names.end());
  return names;
}

CheckpointCheck check_checkpoint(const fs::path& folder, bool hashes) {
  CheckpointCheck check;
  const FileText file = read_file((folder / kManifest).string());
  if (is_missing(file.error)) {
    check.damage = "manifest.json is missing";
    return check;
  }
  try {
    if (file.error == FileText::kNotRegular) {
      check.damage = "manifest.json is not a regular file";
      return check;
    }
    if (file.error != 0) fail_reading(folder / kManifest, file.error);
    const auto manifest = parse_shallow<nlohmann::json>(file.text, kDeepestJson);
    check.damage = damage_of_manifest(manifest, check);
    if (!check.damage.empty() || check.newer) return check;
    check.lineage = lineage_of(manifest);
    for (const auto& [name, entry] : manifest.at("files").items()) {
      check.damage = damage_of_file(folder, name, entry, hashes);
      if (!check.damage.empty()) return check;
    }
  } catch (const nlohmann::json::exception&) {
    check.damage = "manifest.json is damaged";
  } catch (const Error& error) {
    check.damage = error.what();
    check.unreadable = true;
  }
  return check;
}

std::string CheckpointCheck::problem() const {
  if (newer) return fmt::format("written by a newer Starling (format version {})", version);
  return unreadable || damage.empty() ? damage : "damaged: " + damage;
}

int64_t newest_checkpoint_version() {
  return kVersion;
}

void set_aside_above(const fs::path& run_dir, int64_t step, const Say& say) {
  for (const auto& folder : list_checkpoints(run_dir)) {
    if (folder.step <= step) return;
    const CheckpointCheck check = check_checkpoint(folder.path);
    if (check.damage.empty())
      rename_foreign(folder.path, say);
    else if (check.unreadable)
      rename_unreadable(folder.path, check.damage, say);
    else
      rename_damaged(folder.path, check.damage, say);
  }
}

void set_aside_foreign(const fs::path& run_dir, int64_t step, const Lineage& own, const Say& say,
                       const IoStep& before) {
  for (const auto& folder : list_checkpoints(run_dir)) {
    if (folder.step <= step) return;
    const CheckpointCheck check = check_checkpoint(folder.path, /*hashes=*/false);
    const bool hidden = !check.damage.empty() && check.lineage.incarnation.empty();
    if (hidden || own.holds(check.lineage, folder.step)) continue;
    if (before) before("aside");
    rename_foreign(folder.path, say);
  }
}

void remove_leftovers(const fs::path& run_dir, const IoStep& before, int64_t epoch) {
  std::vector<fs::path> left, replaced;
  std::error_code error;
  for (fs::directory_iterator it(run_dir / "checkpoints", error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    const bool writing = begins_with(name, kWriting) && epoch_of_writer(name) <= epoch;
    if (writing || begins_with(name, kOld)) left.push_back(it->path());
    if (begins_with(name, kReplaced)) replaced.push_back(it->path());
  }
  for (const auto& path : replaced) {
    const fs::path to = path.parent_path() / path.filename().string().substr(kReplaced.size());
    if (before) before(kPrune);
    std::error_code unknown;
    if (fs::exists(to, unknown)) {
      remove_folder(path);
    } else if (!may_exist(to) && ::rename(path.c_str(), to.c_str()) != 0 && errno != ENOENT &&
               errno != EEXIST &&
               errno != ENOTEMPTY) {  // a former holder that was suspended may have given it a name meanwhile
      fail(path, fmt::format("rename it back to {}", to.filename().string()), errno);
    }
  }
  for (const auto& path : left) {
    if (before) before(kPrune);
    remove_folder(path);
  }
}

void prune_checkpoints(const fs::path& run_dir, int64_t keep, const Lineage& lineage, int64_t verified,
                       const Say& say, const IoStep& before) {
  int64_t whole = 0;
  for (const auto& folder : list_checkpoints(run_dir)) {
    CheckpointCheck check = check_checkpoint(folder.path, /*hashes=*/false);
    const bool own = lineage.holds(check.lineage, folder.step);
    if (own && whole < keep && folder.step != verified) check = check_checkpoint(folder.path);
    if (check.unreadable) continue;
    // Another process may have taken the folder while this one read the files.
    if (!check.damage.empty()) {
      if (before) before(kPrune);
      rename_damaged(folder.path, check.damage, say);
    } else if (own && !check.newer) {
      if (whole >= keep) {
        if (before) before(kPrune);
        remove_folder(folder.path);
      }
      ++whole;
    }
  }
  remove_leftovers(run_dir, before, lineage.epoch);
}

CheckpointFolderWriter::CheckpointFolderWriter(const fs::path& run_dir, int64_t step, Lineage lineage,
                                               IoStep before)
    : final_(checkpoint_path(run_dir, step)),
      step_(step),
      lineage_(std::move(lineage)),
      before_(std::move(before)) {
  // The name is this writer's own. A former leader that goes on therefore never writes into the new leader's
  // folder, and the new leader removes the former one's (remove_leftovers), so that its rename fails.
  const fs::path folder =
      final_.parent_path() /
      fmt::format("{}{}-{}-{}", kWriting, final_.filename().string(), lineage_.epoch, ::getpid());
  std::error_code error;
  fs::remove_all(folder, error);
  fs::create_directories(folder, error);
  if (error) fail(folder, "make the folder", error.value());
  temporary_ = folder;
}

CheckpointFolderWriter::~CheckpointFolderWriter() {
  if (!temporary_.empty()) remove_folder(temporary_);
}

void CheckpointFolderWriter::add(const std::string& name,
                                 const std::function<void(const std::string&)>& write) {
  if (before_) before_(name);
  write((temporary_ / name).string());
  names_.push_back(name);
}

void CheckpointFolderWriter::add_text(const std::string& name, const std::string& text) {
  add(name, [&](const std::string& path) {
    AtomicFile file(path);
    file.write(text.data(), text.size());
    file.commit();
  });
}

fs::path CheckpointFolderWriter::commit(const Say& say) {
  nlohmann::json manifest = {{"format", "starling-checkpoint"}, {"version", kVersion}, {"step", step_}};
  put_lineage(manifest, lineage_);
  for (const auto& name : names_) {
    const fs::path path = temporary_ / name;
    std::error_code error;
    const uint64_t bytes = fs::file_size(path, error);
    if (error) fail_reading(path, error.value());
    manifest["files"][name] = {{"bytes", bytes}, {"xxh3", hash_of(path)}};
  }
  manifest[kManifestHash] = hash_of_manifest(manifest);
  add_text(kManifest, manifest.dump(2) + "\n");
  if (before_) before_("rename");
  if (fs::exists(final_)) {
    const CheckpointCheck there = check_checkpoint(final_, /*hashes=*/false);
    const bool other = there.lineage.incarnation != lineage_.incarnation;
    if (other && there.unreadable)
      rename_unreadable(final_, there.damage, say);
    else if (other && !there.damage.empty())
      rename_damaged(final_, there.damage, say);
    else if (other && !lineage_.holds(there.lineage, step_))
      rename_foreign(final_, say);
  }
  exchange(temporary_, final_, before_);
  sync_folder(final_.parent_path());
  remove_folder(temporary_);  // the folder that had the name before, if there was one
  temporary_.clear();
  return final_;
}

}  // namespace starling
