#include "starling/job/job_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "starling/base/atomic_file.h"
#include "starling/base/byte_hash.h"
#include "starling/base/error.h"
#include "starling/base/json_depth.h"
#include "starling/base/json_number.h"
#include "starling/base/read_file.h"
#include "starling/job/wait_together.h"

namespace starling {
namespace {

using Json = nlohmann::json;

constexpr const char* kManifestName = "job.json";
constexpr const char* kPartPrefix = "part-";
constexpr const char* kProbePrefix = "probe-";
constexpr int kFormat = 2;                        // since which a manifest has a hash
constexpr int kEarliestFormat = 1;                // that can be read
constexpr int kDeepest = 3;                       // levels of the manifest
constexpr int64_t kMostSteps = int64_t{1} << 53;  // so that a resumed job can count on
constexpr uint64_t kMagic = 0x31424f4a474c5453;   // of a part
constexpr size_t kLongestMessage = 4096;
constexpr const char* kHashName = "hash";  // of the manifest without its hash
// The parts of older checkpoints are removed when a new one is whole.
constexpr const char* kDamaged =
    "is damaged, and the folder has no other checkpoint; use an older copy, or remove the folder to start "
    "anew";

[[noreturn]] void refuse(const std::string& path, const std::string& what) {
  throw Error(ErrorCode::kCheckpoint, fmt::format("{}: {}", path, what));
}

// The head of a part. For each array follow the length of its name, its bytes, the name and the content. The
// hash of all that ends the file.
struct PartHead {
  uint64_t magic = kMagic;
  int64_t step = 0, rank = 0, ranks = 0, arrays = 0;
};

template <typename T>
void append(std::string& bytes, const T& value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

// Takes values from the front of a text.
class Reader {
 public:
  Reader(const std::string& path, std::string_view bytes) : path_(path), bytes_(bytes) {}
  template <typename T>
  T number() {
    T value;
    const std::string_view from = text(sizeof(value));
    std::memcpy(&value, from.data(), from.size());
    return value;
  }
  std::string_view text(uint64_t size) {
    if (size > bytes_.size()) damaged();
    const std::string_view taken = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return taken;
  }
  size_t left() const { return bytes_.size(); }
  [[noreturn]] void damaged() const { refuse(path_, kDamaged); }

 private:
  const std::string& path_;
  std::string_view bytes_;
};

// Returns the content of a file, or nothing if it does not exist.
std::optional<std::string> content_of(const std::string& path) {
  FileText file = read_file(path);
  if (file.error == ENOENT) return std::nullopt;
  if (file.error != 0) refuse(path, "cannot be opened or read: " + file.reason());
  return std::move(file.text);
}

void write_whole(const std::string& path, const std::string& content) {
  AtomicFile file(path);
  file.write(content.data(), content.size());
  file.commit();
}

// Returns the names of the parts in a folder. Errors: Error(kCheckpoint) if the folder cannot be read.
std::vector<std::string> parts_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator entry(folder, error);
  for (const std::filesystem::directory_iterator none; !error && entry != none; entry.increment(error)) {
    std::string name = entry->path().filename();
    const bool whole = name.find('.') == std::string::npos;  // not the temporary file of a part
    if (whole && name.starts_with(kPartPrefix)) names.push_back(std::move(name));
  }
  if (error && error != std::errc::no_such_file_or_directory)
    refuse(folder, "cannot be read: " + error.message());
  return names;
}

// Returns the hash of a manifest. The order of its members does not count.
std::string hash_of_manifest(Json manifest) {
  manifest.erase(kHashName);
  const std::string text = manifest.dump(-1, ' ', false, Json::error_handler_t::replace);
  return fmt::format("{:016x}", hash_bytes(text));
}

// Throws ConfigError at the first setting that differs.
void require_equal(const std::string& folder, const Json& found,
                   const std::map<std::string, std::string>& own) {
  for (const auto& [name, value] : own) {
    const auto other = found.find(name);
    const std::string text = other == found.end() ? "none" : other->get<std::string>();
    if (text != value)
      throw ConfigError("--checkpoint",
                        fmt::format("{} has a checkpoint of another run: {} is {} there and {} "
                                    "here; give another folder, or the settings of that run",
                                    folder, name, text, value));
  }
}

}  // namespace

const std::string& CheckpointArrays::find(const std::string& name, size_t element_bytes) const {
  const auto found = arrays_.find(name);
  if (found == arrays_.end()) refuse(path_, fmt::format("has no array \"{}\"", name));
  if (found->second.size() % element_bytes != 0)
    refuse(path_, fmt::format("array \"{}\" has {} bytes, which is no multiple of {}", name,
                              found->second.size(), element_bytes));
  return found->second;
}

std::string CheckpointArrays::write(int64_t step, int rank, int ranks) const {
  std::string bytes;
  append(
      bytes,
      PartHead{.step = step, .rank = rank, .ranks = ranks, .arrays = static_cast<int64_t>(arrays_.size())});
  for (const auto& [name, content] : arrays_) {
    append(bytes, uint64_t{name.size()});
    append(bytes, uint64_t{content.size()});
    bytes += name;
    bytes += content;
  }
  append(bytes, hash_bytes(bytes));
  return bytes;
}

CheckpointArrays CheckpointArrays::parse(const std::string& path, const std::string& content, int64_t step,
                                         int rank, int ranks) {
  Reader reader(path, content);
  if (content.size() < sizeof(PartHead) + sizeof(uint64_t)) reader.damaged();
  uint64_t hash = 0;
  const size_t hashed = content.size() - sizeof(hash);
  std::memcpy(&hash, content.data() + hashed, sizeof(hash));
  if (hash != hash_bytes(std::string_view(content).substr(0, hashed))) reader.damaged();
  const auto head = reader.number<PartHead>();
  if (head.magic != kMagic || head.step != step || head.rank != rank || head.ranks != ranks)
    refuse(path, "is no part of this checkpoint");
  CheckpointArrays arrays;
  arrays.path_ = path;
  for (int64_t i = 0; i < head.arrays; ++i) {
    const auto name_size = reader.number<uint64_t>();
    const auto size = reader.number<uint64_t>();
    const std::string name(reader.text(name_size));
    arrays.arrays_[name] = std::string(reader.text(size));
  }
  if (reader.left() != sizeof(hash)) reader.damaged();
  return arrays;
}

JobCheckpoint::JobCheckpoint(Group& group, JobCheckpointOptions options)
    : group_(group), options_(std::move(options)) {}

std::string JobCheckpoint::part_path(int64_t step, int rank, int ranks) const {
  return fmt::format("{}/{}{}-{}-of-{}", options_.folder, kPartPrefix, step, rank, ranks);
}

std::optional<JobState> JobCheckpoint::read_manifest() const {
  const std::string path = options_.folder + "/" + kManifestName;
  const auto content = content_of(path);
  if (!content) {
    const std::vector<std::string> parts = parts_in(options_.folder);
    if (!parts.empty())
      refuse(options_.folder, fmt::format("has {} but no {}; copy that file there, or give another folder",
                                          parts.front(), kManifestName));
    return std::nullopt;
  }
  JobState state;
  try {
    const Json manifest = parse_shallow<Json>(*content, kDeepest);
    const int format = integer_of<int>(manifest.at("format"));
    // A damaged format must not look like that of another version.
    const auto hash = manifest.find(kHashName);
    if (hash == manifest.end() ? format == kFormat : *hash != hash_of_manifest(manifest))
      refuse(path, kDamaged);
    if (format < kEarliestFormat || format > kFormat)
      refuse(path, "has a format that this version of Starling does not read; use a newer one");
    if (manifest.at("job").get<std::string>() != options_.job)
      throw ConfigError("--checkpoint",
                        fmt::format("{} has a checkpoint of `starling {}`, not of `starling {}`",
                                    options_.folder, manifest.at("job").get<std::string>(), options_.job));
    require_equal(options_.folder, manifest.at("problem"), options_.problem);
    state.step = integer_of<int64_t>(manifest.at("step"));
    state.ranks = integer_of<int>(manifest.at("ranks"));
    state.values = manifest.at("values").get<std::map<std::string, std::string>>();
  } catch (const Json::exception&) {
    refuse(path, kDamaged);
  }
  if (state.step < 0 || state.step > kMostSteps || state.ranks < 1 || state.ranks > (1 << 20))
    refuse(path, kDamaged);
  return state;
}

void JobCheckpoint::write_manifest(const JobState& state) const {
  Json manifest = {{"format", kFormat},  {"job", options_.job},  {"problem", options_.problem},
                   {"step", state.step}, {"ranks", state.ranks}, {"values", state.values}};
  manifest[kHashName] = hash_of_manifest(manifest);
  write_whole(options_.folder + "/" + kManifestName,
              manifest.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
}

// Takes the lock and removes what killed runs have left.
void JobCheckpoint::prepare() {
  if (!options_.require_lock && !locked_) {
    lock_ = lock_together(group_, options_.folder);
    locked_ = true;
  }
  agree_on_success(group_, [&] {
    make_checkpoint_folder(options_.folder);
    if (group_.rank() == 0) remove_temporary_files(options_.folder, {kPartPrefix, kProbePrefix, "job.json."});
  });
}

void JobCheckpoint::require_lock() const {
  if (options_.require_lock) return options_.require_lock();
  if (lock_) require_lock_holder(options_.folder, lock_->holder());
}

std::optional<JobState> JobCheckpoint::find() {
  if (options_.folder.empty()) return std::nullopt;
  prepare();
  std::optional<JobState> found;
  std::string text;
  agree_on_success(group_, [&] {
    // It leaves no trace.
    const AtomicFile probe(fmt::format("{}/{}{}", options_.folder, kProbePrefix, group_.rank()));
    if (group_.rank() != 0) return;
    found = read_manifest();
    if (found) text = Json{{"step", found->step}, {"ranks", found->ranks}, {"values", found->values}}.dump();
  });
  auto size = static_cast<int64_t>(text.size());
  broadcast(group_, &size, 1, DataType::kInt64, 0);
  if (size == 0) return std::nullopt;
  text.resize(static_cast<size_t>(size));
  broadcast(group_, text.data(), text.size(), DataType::kUint8, 0);
  const Json state = Json::parse(text);
  found = JobState{.step = state.at("step").get<int64_t>(),
                   .ranks = state.at("ranks").get<int>(),
                   .values = state.at("values").get<std::map<std::string, std::string>>()};
  if (found->ranks == group_.size()) last_ = found->step;
  return found;
}

CheckpointArrays JobCheckpoint::read(const JobState& state, int rank) const {
  const std::string path = part_path(state.step, rank, state.ranks);
  const auto content = content_of(path);
  if (!content) refuse(path, "does not exist; the checkpoint is not whole");
  return CheckpointArrays::parse(path, *content, state.step, rank, state.ranks);
}

void JobCheckpoint::save(int64_t step, const CheckpointArrays& arrays,
                         const std::map<std::string, std::string>& values) {
  if (options_.folder.empty()) return;
  const int rank = group_.rank(), ranks = group_.size();
  agree_on_success(group_, [&] {
    if (rank == 0) require_lock();  // before any rank replaces a part
  });
  agree_on_success(group_,
                   [&] { write_whole(part_path(step, rank, ranks), arrays.write(step, rank, ranks)); });
  agree_on_success(group_, [&] {
    if (rank == 0) write_manifest({.step = step, .ranks = ranks, .values = values});
  });
  remove_other_parts(step);
  last_ = step;
}

// Every rank removes its own older parts. Rank 0 also removes the parts of runs on other numbers of ranks.
void JobCheckpoint::remove_other_parts(int64_t step) const {
  const std::string kept = fmt::format("{}{}-", kPartPrefix, step);
  const std::string end = fmt::format("-of-{}", group_.size());
  std::vector<std::string> names;
  try {
    names = parts_in(options_.folder);
  } catch (const Error&) {
    return;  // the next checkpoint tries again
  }
  const std::string own = fmt::format("-{}-of-{}", group_.rank(), group_.size());
  for (const std::string& name : names) {
    const bool old = !name.starts_with(kept) || !name.ends_with(end);
    const bool mine = name.ends_with(own) || (group_.rank() == 0 && !name.ends_with(end));
    std::error_code ignored;
    if (old && mine) std::filesystem::remove(options_.folder + "/" + name, ignored);
  }
}

std::unique_ptr<FolderLock> lock_together(Group& group, const std::string& folder) {
  std::unique_ptr<FolderLock> lock;
  std::exception_ptr fault;
  wait_together(group, [&] {
    if (group.rank() != 0) return;
    try {
      make_checkpoint_folder(folder);
      lock = lock_checkpoints(folder);
    } catch (const Error&) {
      fault = std::current_exception();
    }
  });
  agree_on_success(group, [&] {
    if (fault) std::rethrow_exception(fault);
  });
  return lock;
}

void agree_on_success(Group& group, const std::function<void()>& work) {
  struct Outcome {
    int64_t code = -1;  // of an Error
    uint64_t length = 0;
  };
  Outcome own;
  std::string message;
  try {
    work();
  } catch (const CommError&) {
    throw;
  } catch (const Error& error) {
    own.code = static_cast<int64_t>(error.code());
    message = std::string(error.what()).substr(0, kLongestMessage);
    own.length = message.size();
  }
  std::vector<Outcome> all(static_cast<size_t>(group.size()));
  all_gather(group, &own, all.data(), sizeof(own), DataType::kUint8);
  for (int rank = 0; rank < group.size(); ++rank) {
    const Outcome& outcome = all[static_cast<size_t>(rank)];
    if (outcome.code < 0) continue;
    message.resize(outcome.length);
    if (outcome.length > 0) broadcast(group, message.data(), outcome.length, DataType::kUint8, rank);
    throw Error(static_cast<ErrorCode>(outcome.code), message, rank);
  }
}

}  // namespace starling
