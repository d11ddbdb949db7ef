#include "starling/launch/orphans.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <charconv>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <system_error>
#include <thread>

namespace starling {
namespace {

using OrphanClock = std::chrono::steady_clock;

// Returns the children of this process, as /proc shows them.
std::set<pid_t> children() {
  std::set<pid_t> found;
  std::error_code error;
  const pid_t self = ::getpid();
  for (std::filesystem::directory_iterator it("/proc", error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    pid_t pid = 0, parent = 0;
    const auto parsed = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (parsed.ec != std::errc() || parsed.ptr != name.data() + name.size()) continue;
    std::ifstream file(it->path() / "stat");
    std::string text;
    if (!std::getline(file, text)) continue;
    const size_t name_end = text.rfind(')');  // the name may contain anything
    if (name_end == std::string::npos) continue;
    std::istringstream rest(text.substr(name_end + 1));
    std::string state;
    rest >> state >> parent;
    if (parent == self) found.insert(pid);
  }
  return found;
}

}  // namespace

Orphans::Orphans() : earlier_(children()) {
  int set = 0;
  was_set_ = ::prctl(PR_GET_CHILD_SUBREAPER, &set) == 0 && set != 0;
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
}

Orphans::~Orphans() {
  if (!was_set_) ::prctl(PR_SET_CHILD_SUBREAPER, 0);
}

std::set<pid_t> Orphans::left_behind() const {
  std::set<pid_t> left;
  for (const pid_t pid : children()) {
    if (!earlier_.contains(pid) && ::waitpid(pid, nullptr, WNOHANG) == 0) left.insert(pid);
  }
  return left;
}

void Orphans::end_all(std::chrono::milliseconds grace) const {
  std::set<pid_t> told;
  const auto kill_at = OrphanClock::now() + grace;
  // The children of an orphan that ends become orphans, so that several rounds may be needed.
  for (auto left = left_behind(); !left.empty(); left = left_behind()) {
    const bool patient = OrphanClock::now() < kill_at;
    if (OrphanClock::now() > kill_at + grace) return;  // processes of another user, which cannot be ended
    for (const pid_t pid : left) {
      if (!patient) {
        ::kill(pid, SIGKILL);
      } else if (told.insert(pid).second) {
        ::kill(pid, SIGTERM);
        ::kill(pid, SIGCONT);  // a stopped process does not take SIGTERM
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

}  // namespace starling
