#include "starling/job/folder_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <sstream>
#include <system_error>
#include <vector>

#include "starling/base/error.h"
#include "starling/base/json_number.h"
#include "starling/base/read_file.h"
#include "starling/base/unique_fd.h"
#include "starling/net/address.h"

namespace starling {
namespace fs = std::filesystem;
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr std::string_view kEpochPrefix = "epoch-";
constexpr const char* kUnreadable = "?";  // the token of a holder whose file cannot be read
constexpr std::chrono::milliseconds kPoll{20};

// The content of one epoch's file.
struct Holder {
  int64_t epoch = 0;
  std::string host;  // its name, for messages
  std::string pids;  // the space of process numbers: processes with equal `pids` see each other
  int64_t pid = 0;
  uint64_t started = 0;  // when the process started, in ticks since the host's start
  std::string incarnation;
  std::string token;  // of the FolderLock; empty if the lock has been released
};

std::string pid_space() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::error_code error;
  const fs::path space = fs::read_symlink("/proc/self/ns/pid", error);
  return boot.empty() || error ? "" : boot + " " + space.string();
}

// A process as /proc shows it. A zombie has ended.
struct ProcessState {
  bool lives = false;
  uint64_t started = 0;  // 0: unknown
};

ProcessState state_of_process(int64_t pid) {
  const bool exists = ::kill(static_cast<pid_t>(pid), 0) == 0 || errno == EPERM;
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string text;
  if (!std::getline(file, text)) return {exists, 0};  // hidden, because it belongs to another user
  const size_t name_end = text.rfind(')');            // the name may contain anything
  if (name_end == std::string::npos) return {exists, 0};
  std::istringstream rest(text.substr(name_end + 1));
  std::string state, skipped;
  rest >> state;
  for (int field = 4; field < 22; ++field) rest >> skipped;
  ProcessState process{state != "Z" && state != "X", 0};
  rest >> process.started;
  return process;
}

fs::path epoch_file(const fs::path& folder, int64_t epoch) {
  return folder / fmt::format("{}{:06}", kEpochPrefix, epoch);
}

// Returns the epochs that have a file, ascending. Errors: Error (kCheckpoint) if the folder cannot be listed.
std::vector<int64_t> epochs_in(const fs::path& folder) {
  std::vector<int64_t> epochs;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.compare(0, kEpochPrefix.size(), kEpochPrefix) != 0) continue;
    int64_t epoch = 0;
    const char* last = name.data() + name.size();
    const auto parsed = std::from_chars(name.data() + kEpochPrefix.size(), last, epoch);
    if (parsed.ec == std::errc() && parsed.ptr == last) epochs.push_back(epoch);
  }
  if (error && error != std::errc::no_such_file_or_directory)
    throw Error(ErrorCode::kCheckpoint,
                fmt::format("{}: cannot be read: {}; make it readable", folder.string(), error.message()));
  std::sort(epochs.begin(), epochs.end());
  return epochs;
}

std::string text_of_holder(const Holder& holder) {
  return nlohmann::json{{"epoch", holder.epoch},     {"host", holder.host},
                        {"pids", holder.pids},       {"pid", holder.pid},
                        {"started", holder.started}, {"incarnation", holder.incarnation},
                        {"token", holder.token}}
             .dump(2) +
         "\n";
}

// Returns the holder of the highest epoch. A file that cannot be read gives a holder of an unknown host.
std::optional<Holder> highest_holder(const fs::path& folder) {
  const std::vector<int64_t> epochs = epochs_in(folder);
  if (epochs.empty()) return std::nullopt;
  Holder holder;
  holder.epoch = epochs.back();
  holder.host = "an unknown host";
  holder.token = kUnreadable;
  // If the disk or the network reports an error, the text is empty, which is no JSON either.
  const FileText file = read_file(epoch_file(folder, holder.epoch).string());
  try {
    const auto json = nlohmann::json::parse(file.text);
    holder.host = json.at("host").get<std::string>();
    holder.pids = json.at("pids").get<std::string>();
    holder.pid = integer_of<int64_t>(json.at("pid"));
    holder.started = integer_of<uint64_t>(json.at("started"));
    holder.incarnation = json.at("incarnation").get<std::string>();
    holder.token = json.at("token").get<std::string>();
  } catch (const nlohmann::json::exception&) {  // the holder counts as silent after a wait
  }
  return holder;
}

[[noreturn]] void fail_to_lock(const fs::path& path, int error, const std::string& flag) {
  throw LockNotWritten(
      fmt::format("{}: cannot write the lock of the folder: {}; free space, or give another folder by {}",
                  path.string(), std::strerror(error), flag));
}

// Writes a new file whose name only this process uses, and returns its path.
fs::path write_beside(const fs::path& folder, const Holder& holder, const std::string& flag) {
  const fs::path path = folder / fmt::format(".{}-{}-{}", ::getpid(), holder.epoch, holder.token);
  const std::string text = text_of_holder(holder);
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!fd.valid()) fail_to_lock(path, errno, flag);
  const ssize_t written = ::write(fd.get(), text.data(), text.size());
  int error = written < 0 ? errno : 0;
  if (error == 0 && written < static_cast<ssize_t>(text.size())) error = ENOSPC;
  if (error == 0 && ::fsync(fd.get()) != 0) error = errno;
  if (error != 0) {
    ::unlink(path.c_str());
    fail_to_lock(path, error, flag);
  }
  return path;
}

// Makes the file of holder.epoch. Returns false if the file exists.
bool create_epoch(const fs::path& folder, const Holder& holder, const std::string& flag) {
  const fs::path made = write_beside(folder, holder, flag), file = epoch_file(folder, holder.epoch);
  int rc = ::link(made.c_str(), file.c_str());
  int error = rc == 0 ? 0 : errno;
  if (error == EPERM || error == EOPNOTSUPP || error == ENOSYS) {  // a file system without links
    rc = ::renameat2(AT_FDCWD, made.c_str(), AT_FDCWD, file.c_str(), RENAME_NOREPLACE);
    error = rc == 0 ? 0 : errno;
  }
  ::unlink(made.c_str());
  if (rc != 0 && error != EEXIST) fail_to_lock(file, error, flag);
  return rc == 0;
}

// The signs of life of holders, as this process sees them.
class SignsOfLife {
 public:
  // Looks at the file of the epoch.
  void look(const fs::path& folder, int64_t epoch) {
    struct stat info{};
    // open() looks afresh over NFS. It must not wait for a pipe of that name.
    const UniqueFd fd(::open(epoch_file(folder, epoch).c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    const bool found = fd.valid() && ::fstat(fd.get(), &info) == 0;
    const int64_t time = found ? info.st_mtim.tv_sec * 1'000'000'000 + info.st_mtim.tv_nsec : 0;
    if (epoch == epoch_ && time == time_) return;
    seen_ = epoch == epoch_;  // the first look at an epoch shows nothing
    since_ = SteadyClock::now();
    epoch_ = epoch;
    time_ = time;
  }
  // Returns true if the holder of the epoch has given a sign since the first look.
  bool seen() const { return seen_; }
  // Returns how long ago the last sign was, or the first look.
  SteadyClock::duration silence() const { return SteadyClock::now() - since_; }

 private:
  int64_t epoch_ = -1, time_ = 0;
  bool seen_ = false;
  SteadyClock::time_point since_{};
};

[[noreturn]] void refuse_folder(const fs::path& folder, const Holder& holder, const std::string& flag) {
  throw ConfigError(
      flag, fmt::format(
                "{} is in use by process {} on {} (epoch {}); give another {}, or wait until that run "
                "has ended. If it has ended, delete {}",
                folder.parent_path().string(), holder.pid, holder.host, holder.epoch, flag, folder.string()));
}

// Returns true if the holder, which is a process of this host, still runs.
bool lives(const Holder& holder) {
  const ProcessState process = state_of_process(holder.pid);
  return process.lives && (process.started == 0 || process.started == holder.started);
}

// Throws unless the holder had the incarnation.
void require_same_run(const fs::path& folder, const Holder& holder, const std::string& incarnation) {
  if (holder.token == kUnreadable)
    throw Error(ErrorCode::kCheckpoint,
                fmt::format("{}: cannot be read, so it is unknown whether another run has used the folder; "
                            "delete the file if no other run has",
                            epoch_file(folder, holder.epoch).string()));
  if (holder.incarnation == incarnation) return;
  throw ConfigError("--run-dir",
                    fmt::format("process {} on {} has used {} for another run since this run began "
                                "(epoch {}). This run writes nothing more into the folder; give each run a "
                                "--run-dir of its own",
                                holder.pid, holder.host, folder.parent_path().string(), holder.epoch));
}

}  // namespace

std::unique_ptr<FolderLock> lock_checkpoints(const std::string& folder) {
  FolderLockOptions options;
  options.flag = "--checkpoint";
  options.say = [](const std::string& text) { std::cerr << "starling: warning: " + text + "\n"; };
  return std::make_unique<FolderLock>(folder, new_incarnation(), std::move(options));
}

void require_lock_holder(const fs::path& folder, const LockHolder& known) {
  std::optional<Holder> now;
  try {
    now = highest_holder(folder / "lock");
  } catch (const Error&) {
  }
  if (!now) return;
  const bool readable = now->token != kUnreadable && !known.incarnation.empty();
  if (now->epoch == known.epoch && (!readable || now->incarnation == known.incarnation)) return;
  throw Error(
      ErrorCode::kCheckpoint,
      fmt::format("{}: process {} on {} has taken over the folder for another run (epoch {}, and this "
                  "run had {}). This run writes nothing more into the folder; the other one goes on",
                  folder.string(), now->pid, now->host, now->epoch, known.epoch));
}

LockHolder last_lock_holder(const fs::path& run_dir) {
  const std::optional<Holder> holder = highest_holder(run_dir / "lock");
  if (!holder) return {};
  const std::string pids = pid_space();
  const bool visible = !holder->token.empty() && !pids.empty() && holder->pids == pids;
  return {holder->epoch, holder->incarnation, visible && lives(*holder)};
}

LockHolder ended_lock_holder(const fs::path& run_dir) {
  try {
    LockHolder holder = last_lock_holder(run_dir);
    return holder.lives ? LockHolder{} : holder;
  } catch (const Error&) {
    return {};
  }
}

std::string new_incarnation() {
  std::random_device device;
  std::string text;
  for (int i = 0; i < 4; ++i) text += fmt::format("{:08x}", static_cast<uint32_t>(device()));
  return text;
}

FolderLock::FolderLock(const fs::path& folder, std::string incarnation, FolderLockOptions options)
    : folder_(folder / "lock"),
      incarnation_(std::move(incarnation)),
      options_(std::move(options)),
      token_(new_incarnation()) {
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error) fail_to_lock(folder_, error.value(), options_.flag);
  take();
  thread_ = std::thread([this] { beat(); });
}

FolderLock::~FolderLock() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_all();
  thread_.join();
  try {
    if (epochs_in(folder_).empty() || !held()) return;
    const Holder released{epoch_, host_name(), pid_space(), ::getpid(), 0, incarnation_, /*token=*/""};
    const fs::path made = write_beside(folder_, released, options_.flag);
    std::error_code error;
    fs::rename(made, epoch_file(folder_, epoch_), error);
    if (error) ::unlink(made.c_str());
  } catch (const std::exception&) {  // a destructor: the next run finds that this process has ended
  }
}

// Waits until no living process holds the lock. Returns the highest epoch so far.
int64_t FolderLock::await_free() {
  const auto begin = SteadyClock::now();
  const std::string pids = pid_space();
  SignsOfLife signs;
  for (bool said = false;; std::this_thread::sleep_for(kPoll)) {
    const std::optional<Holder> other = highest_holder(folder_);
    if (!other) return 0;
    if (options_.known && *options_.known != LockHolder{other->epoch, other->incarnation})
      require_same_run(folder_, *other, incarnation_);
    if (other->token.empty() || other->incarnation == incarnation_) return other->epoch;
    const bool patient = SteadyClock::now() - begin < options_.grace;
    if (!pids.empty() && other->pids == pids) {
      if (!lives(*other)) return other->epoch;
      if (!patient) refuse_folder(folder_, *other, options_.flag);
      continue;
    }
    signs.look(folder_, other->epoch);
    if (signs.silence() >= options_.silence) return other->epoch;
    if (signs.seen() && !patient) refuse_folder(folder_, *other, options_.flag);
    if (!said && options_.say)
      options_.say(
          fmt::format("process {} on {} was the last to use {}. Waiting up to {} s for a sign that "
                      "it still runs",
                      other->pid, other->host, folder_.parent_path().string(),
                      std::chrono::ceil<std::chrono::seconds>(options_.silence).count()));
    said = true;
  }
}

void FolderLock::take() {
  for (;;) {
    const ProcessState self = state_of_process(::getpid());
    const Holder own{await_free() + 1, host_name(),  pid_space(), ::getpid(),
                     self.started,     incarnation_, token_};
    if (!create_epoch(folder_, own, options_.flag)) continue;
    epoch_ = own.epoch;
    // Another process may have taken higher epochs since this one looked, and removed the file of this one.
    if (held()) break;
    ::unlink(epoch_file(folder_, epoch_).c_str());
  }
  for (const int64_t epoch : epochs_in(folder_)) {
    if (epoch < epoch_) ::unlink(epoch_file(folder_, epoch).c_str());
  }
}

bool FolderLock::held() const {
  std::optional<Holder> holder;
  try {
    holder = highest_holder(folder_);
  } catch (const Error&) {  // what cannot be listed now shows no other holder
    return true;
  }
  // The file of this epoch is this process's own, unless the user has deleted the folder and another run has
  // made it anew. The other run then has any epoch, a lower one included.
  return !holder || (holder->epoch == epoch_ && (holder->token == token_ || holder->token == kUnreadable));
}

void FolderLock::require() const {
  if (held()) return;
  const Holder holder = highest_holder(folder_).value_or(Holder{});
  const std::string text = fmt::format(
      "{}: this process does not hold the folder any more: process {} on {} took it "
      "over (epoch {}, and this process had {}). It writes nothing more into the folder; the other process "
      "goes on",
      folder_.parent_path().string(), holder.pid, holder.host, holder.epoch, epoch_);
  if (holder.incarnation != incarnation_) throw ConfigError("", text);
  throw Error(ErrorCode::kCheckpoint, text);
}

void FolderLock::beat() {
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, options_.beat, [this] { return ending_; })) {
    if (held()) {
      ::utimensat(AT_FDCWD, epoch_file(folder_, epoch_).c_str(), nullptr, 0);
    } else {
      if (options_.replaced) options_.replaced();
      return;
    }
  }
}

}  // namespace starling
