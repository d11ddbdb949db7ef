#include "starling/queue/queue_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "starling/base/error.h"

namespace starling {
namespace {

void make_folder(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
    throw Error(ErrorCode::kCheckpoint,
                fmt::format("{}: cannot make the folder: {}", path, std::strerror(errno)));
}

}  // namespace

const char* remote_file_system(int64_t type) {
  constexpr std::pair<uint32_t, const char*> kRemote[] = {
      {0x6969, "NFS"},      {0x517B, "SMB"},        {0xFE534D42, "SMB"},  {0xFF534D42, "SMB"},
      {0x65735546, "FUSE"}, {0x0BD00BD0, "Lustre"}, {0x47504653, "GPFS"}, {0x19830326, "BeeGFS"},
      {0x00C36400, "Ceph"}, {0x5346414F, "AFS"}};
  for (const auto& [number, name] : kRemote)
    if (static_cast<uint32_t>(type) == number) return name;
  return nullptr;
}

QueueFolder::QueueFolder(const std::string& path, bool creates) : path_(path) {
  std::error_code ignored;
  path_ = std::filesystem::absolute(path_, ignored).lexically_normal().string();
  while (path_.size() > 1 && path_.back() == '/') path_.pop_back();
  if (creates) {
    std::filesystem::create_directories(std::filesystem::path(path_).parent_path(), ignored);
    make_folder(path_);
  }
  struct stat info{};
  if (::stat(path_.c_str(), &info) != 0)
    throw ConfigError("--state",
                      fmt::format("{}: {}. Start the daemon with `starling queue serve`, or name its "
                                  "folder by --state",
                                  path_, std::strerror(errno)));
  if (!S_ISDIR(info.st_mode)) throw ConfigError("--state", fmt::format("{} is no folder", path_));
  if (info.st_uid != ::geteuid())
    throw ConfigError("--state",
                      fmt::format("{} belongs to another account, whose daemon would execute what is "
                                  "written there. Give a folder of your own",
                                  path_));
  if ((info.st_mode & 077) != 0)
    throw ConfigError("--state",
                      fmt::format("{} is open to other accounts, which could execute programs as you: "
                                  "chmod 700 {}",
                                  path_, path_));
  struct statfs system{};
  if (::statfs(path_.c_str(), &system) == 0)
    if (const char* remote = remote_file_system(system.f_type))
      throw ConfigError("--state",
                        fmt::format("{} is on {}, which other hosts may write too, and locks may not work "
                                    "there. Give a folder on a disk of this host",
                                    path_, remote));
  if (creates) make_folder(path_ + "/jobs");
}

std::string QueueFolder::job_folder(int64_t id) const {
  return fmt::format("{}/jobs/{}", path_, id);
}

void QueueFolder::make_job_folder(int64_t id) const {
  make_folder(job_folder(id));
}

DaemonLock::DaemonLock(const QueueFolder& folder) {
  const std::string path = folder.path() + "/daemon.lock";
  fd_.reset(::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
  struct flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  if (fd_.valid() && ::fcntl(fd_.get(), F_SETLK, &lock) == 0) return;
  const int error = errno;
  if (fd_.valid() && (error == EAGAIN || error == EACCES) && ::fcntl(fd_.get(), F_GETLK, &lock) == 0)
    throw ConfigError("--state",
                      fmt::format("process {} serves the queue of {} already", lock.l_pid, folder.path()));
  throw Error(ErrorCode::kCheckpoint, fmt::format("{}: cannot be locked: {}", path, std::strerror(error)));
}

}  // namespace starling
