#include "starling/queue/process_identity.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <system_error>

#include "starling/base/unique_fd.h"

namespace starling {
namespace {

std::string boot_name() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::error_code error;
  const std::filesystem::path space = std::filesystem::read_symlink("/proc/self/ns/pid", error);
  return boot + " " + (error ? "" : space.string());
}

// Returns when the process started, or nothing if it has ended.
std::optional<uint64_t> start_of(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string text;
  if (!std::getline(file, text)) return std::nullopt;
  const size_t name_end = text.rfind(')');  // the name may contain anything
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream rest(text.substr(name_end + 1));
  std::string state, skipped;
  rest >> state;
  for (int field = 4; field < 22; ++field) rest >> skipped;
  uint64_t started = 0;
  rest >> started;
  if (state == "Z" || state == "X") return std::nullopt;
  return started;
}

}  // namespace

ProcessName own_process_name() {
  return {::getpid(), start_of(::getpid()).value_or(0), boot_name()};
}

bool lives(const ProcessName& name) {
  return name.pid > 0 && name.boot == boot_name() && start_of(name.pid) == name.started;
}

bool send_signal(const ProcessName& name, int signal) {
  if (name.pid <= 0) return false;
  // The descriptor keeps naming one process, also if the number is used again after the check.
  const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, name.pid, 0)));
  if (!process.valid() || !lives(name)) return false;
  return ::syscall(SYS_pidfd_send_signal, process.get(), signal, nullptr, 0) == 0;
}

}  // namespace starling
