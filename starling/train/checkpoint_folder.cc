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
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <system_error>

#include "starling/base/error.h"
#include "starling/base/unique_fd.h"
#include "starling/nn/atomic_file.h"

namespace starling {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kWriting = ".writing-";
constexpr std::string_view kOld = ".old-";
constexpr const char* kManifest = "manifest.json";
constexpr int kVersion = 1;

[[noreturn]] void fail(const fs::path& path, const std::string& what, int error) {
  throw Error(ErrorCode::kCheckpoint,
              fmt::format("{}: cannot {}: {}; checkpoints written before are unchanged", path.string(), what,
                          std::strerror(error)));
}

void sync_folder(const fs::path& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid() || ::fsync(fd.get()) != 0) fail(path, "write the folder to the disk", errno);
}

// The XXH3 hash (128 bits) of a file as 32 hexadecimal digits.
std::string hash_of(const fs::path& path) {
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(), &XXH3_freeState);
  XXH3_128bits_reset(state.get());
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) fail(path, "read", errno);
  std::vector<char> buffer(size_t{1} << 20);
  for (;;) {
    const ssize_t n = ::read(fd.get(), buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(path, "read", errno);
    if (n == 0) break;
    XXH3_128bits_update(state.get(), buffer.data(), static_cast<size_t>(n));
  }
  const XXH128_hash_t hash = XXH3_128bits_digest(state.get());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

// Puts `from` at `to`; a folder that was there goes to `from`'s name. One atomic step where the file system can.
void exchange(const fs::path& from, const fs::path& to) {
  if (!fs::exists(to)) {
    if (::rename(from.c_str(), to.c_str()) != 0) fail(to, "rename the new folder to it", errno);
    return;
  }
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) return;
  if (errno != EINVAL && errno != ENOSYS) fail(to, "exchange it for the new folder", errno);
  const fs::path aside = to.parent_path() / (std::string(kOld) + to.filename().string());
  if (::rename(to.c_str(), aside.c_str()) != 0 || ::rename(from.c_str(), to.c_str()) != 0 ||
      ::rename(aside.c_str(), from.c_str()) != 0)
    fail(to, "exchange it for the new folder", errno);
}

bool begins_with(const std::string& name, std::string_view prefix) {
  return name.compare(0, prefix.size(), prefix) == 0;
}

// Moves a folder out of sight, then deletes it. What cannot be deleted stays under its hidden name for the next time.
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

std::string damage_of_file(const fs::path& folder, const std::string& name, const nlohmann::json& entry,
                           bool hashes) {
  if (name.empty() || name.find('/') != std::string::npos)
    return fmt::format("the manifest names '{}'", name);
  std::error_code error;
  const auto size = fs::file_size(folder / name, error);
  if (error) return fmt::format("{} is missing", name);
  if (size != entry.at("bytes").get<uint64_t>())
    return fmt::format("{} has {} bytes, the manifest says {}", name, size,
                       entry.at("bytes").get<uint64_t>());
  if (hashes && hash_of(folder / name) != entry.at("xxh3").get<std::string>())
    return fmt::format("the content of {} does not have the manifest's hash", name);
  return "";
}

}  // namespace

fs::path checkpoint_path(const fs::path& run_dir, int64_t step) {
  return run_dir / "checkpoints" / fmt::format("{}{:06}", kPrefix, step);
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
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.step > b.step; });
  return found;
}

std::string damage_of(const fs::path& folder, bool hashes) {
  std::ifstream file(folder / kManifest);
  if (!file) return "manifest.json is missing";
  try {
    const auto manifest = nlohmann::json::parse(file);
    if (manifest.at("format") != "starling-checkpoint") return "manifest.json is not that of a checkpoint";
    if (manifest.at("version") != kVersion)
      return fmt::format("it has version {}, this Starling reads {}", manifest.at("version").dump(),
                         kVersion);
    if (manifest.at("files").empty()) return "the manifest names no files";
    for (const auto& [name, entry] : manifest.at("files").items())
      if (std::string damage = damage_of_file(folder, name, entry, hashes); !damage.empty()) return damage;
  } catch (const nlohmann::json::exception&) {
    return "manifest.json is damaged";
  } catch (const Error& error) {
    return error.what();  // a file cannot be read
  }
  return "";
}

void prune_checkpoints(const fs::path& run_dir, int64_t keep) {
  int64_t whole = 0;
  for (const auto& folder : list_checkpoints(run_dir)) {
    if (whole >= keep) {
      remove_folder(folder.path);
    } else if (damage_of(folder.path, false).empty()) {
      ++whole;
    }
  }
  std::vector<fs::path> left;
  std::error_code error;
  for (fs::directory_iterator it(run_dir / "checkpoints", error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (begins_with(name, kWriting) || begins_with(name, kOld)) left.push_back(it->path());
  }
  for (const auto& path : left) remove_folder(path);
}

CheckpointFolderWriter::CheckpointFolderWriter(const fs::path& run_dir, int64_t step, IoStep before)
    : final_(checkpoint_path(run_dir, step)), before_(std::move(before)) {
  const fs::path folder = final_.parent_path() / (std::string(kWriting) + final_.filename().string());
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

fs::path CheckpointFolderWriter::commit() {
  nlohmann::json manifest = {{"format", "starling-checkpoint"}, {"version", kVersion}};
  for (const auto& name : names_) {
    const fs::path path = temporary_ / name;
    std::error_code error;
    const uint64_t bytes = fs::file_size(path, error);
    if (error) fail(path, "read", error.value());
    manifest["files"][name] = {{"bytes", bytes}, {"xxh3", hash_of(path)}};
  }
  add_text(kManifest, manifest.dump(2) + "\n");
  if (before_) before_("rename");
  exchange(temporary_, final_);
  sync_folder(final_.parent_path());
  remove_folder(temporary_);  // the folder that had the name before, if there was one
  temporary_.clear();
  return final_;
}

}  // namespace starling
