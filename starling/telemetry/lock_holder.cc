#include "starling/telemetry/lock_holder.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <set>

namespace starling {
namespace {

// Returns the state of a process as /proc shows it: 'R', 'S', 'T' (stopped) and so on; 0 if it is unknown.
char state_of(int pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string text;
  if (!std::getline(file, text)) return 0;
  const size_t name_end = text.rfind(')');  // the name may contain anything
  return name_end == std::string::npos || name_end + 2 >= text.size() ? 0 : text[name_end + 2];
}

}  // namespace

std::string describe_lock_holder(const std::string& path) {
  std::set<unsigned long> inodes;
  for (const char* suffix : {"", "-shm"}) {
    struct stat info{};
    if (::stat((path + suffix).c_str(), &info) == 0) inodes.insert(info.st_ino);
  }
  // A line is "1: POSIX  ADVISORY  WRITE 4711 08:02:131090 120 120". The device may differ from that of
  // stat() (overlay file systems), so only the inode is compared.
  std::ifstream locks("/proc/locks");
  for (std::string line; std::getline(locks, line);) {
    int pid = 0;
    unsigned major = 0, minor = 0;
    unsigned long inode = 0;
    if (std::sscanf(line.c_str(), "%*d: %*s %*s WRITE %d %x:%x:%lu", &pid, &major, &minor, &inode) != 4 ||
        pid <= 0 || pid == ::getpid() || !inodes.contains(inode))
      continue;
    if (state_of(pid) != 'T')
      return fmt::format("process {} holds its lock: wait until that process has ended, or end it", pid);
    return fmt::format(
        "process {}, which is stopped, holds its lock: continue the process with `kill -CONT {}`, or end it "
        "with `kill -KILL {}`",
        pid, pid, pid);
  }
  return "";
}

}  // namespace starling
