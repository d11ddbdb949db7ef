#include "starling/queue/keeper.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "starling/base/atomic_file.h"
#include "starling/base/error.h"
#include "starling/base/json_number.h"
#include "starling/launch/rank_process.h"
#include "starling/launch/signal_watch.h"
#include "starling/telemetry/unix_time.h"

namespace starling {
namespace {

constexpr int kCannotStart = 127;  // the status of a job whose program cannot be started, as in a shell

[[noreturn]] void throw_damaged(const std::string& path, const AttemptFiles& files) {
  throw Error(ErrorCode::kCheckpoint,
              fmt::format("{} is damaged. End all processes of the job, which `fuser {}/err` names, and then "
                          "delete the file: the job starts anew",
                          path, files.folder));
}

std::optional<nlohmann::json> read_json(const std::string& path, const AttemptFiles& files) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  std::ostringstream text;
  text << file.rdbuf();
  nlohmann::json json = nlohmann::json::parse(text.str(), nullptr, false);
  if (!json.is_object()) throw_damaged(path, files);
  return json;
}

// Makes the file of the claim, whose content is whole from the beginning. Returns false if the file exists.
bool claim(const AttemptFiles& files, const ProcessName& name) {
  const std::string text =
      nlohmann::json{{"pid", name.pid}, {"started", name.started}, {"boot", name.boot}}.dump();
  const std::string made = fmt::format("{}.{}", files.claim(), ::getpid());
  {
    const UniqueFd fd(::open(made.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!fd.valid() || ::write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
        ::fsync(fd.get()) != 0)
      throw Error(ErrorCode::kCheckpoint, fmt::format("{}: {}; free space", made, std::strerror(errno)));
  }
  const bool first = ::link(made.c_str(), files.claim().c_str()) == 0;
  const int error = errno;
  ::unlink(made.c_str());
  if (!first && error != EEXIST)
    throw Error(ErrorCode::kCheckpoint, fmt::format("{}: {}; the folder of the queue must allow hard links",
                                                    files.claim(), std::strerror(error)));
  return first;
}

void write_end(const AttemptFiles& files, const AttemptEnd& end) {
  AtomicFile file(files.end());
  const nlohmann::json json{
      {"status", end.status}, {"message", end.message}, {"ended", end.ended_s}, {"told", end.told}};
  const std::string text = json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  file.write(text.data(), text.size());
  file.commit();
}

void complain(const char* what) {
  const std::string text = fmt::format("starling: queue: the keeper of the job failed: {}\n", what);
  [[maybe_unused]] const ssize_t n = ::write(2, text.data(), text.size());
}

// Writes the record, and tries again while that fails, as on a full disk. Without the record, the job would
// run again. Gives up if the folder of the job is gone.
void write_end_at_last(const AttemptFiles& files, const AttemptEnd& end) {
  std::chrono::milliseconds pause{50};
  for (bool first = true;; first = false) {
    try {
      return write_end(files, end);
    } catch (const Error& error) {
      if (::access(files.folder.c_str(), F_OK) != 0) throw;
      if (first) complain(error.what());
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, std::chrono::milliseconds(5000));
  }
}

void redirect(const std::string& path, int flags, int to) {
  const int fd = ::open(path.c_str(), flags | O_NOFOLLOW, 0600);
  if (fd < 0 || ::dup2(fd, to) < 0) ::_exit(kCannotStart);
  if (fd != to) ::close(fd);
}

// Detaches the process from the daemon: a session of its own, no descriptor of the daemon, its own output.
void detach(const KeeperOrder& order) {
  ::setsid();
  ::syscall(SYS_close_range, 3U, ~0U, 0U);
  redirect("/dev/null", O_RDONLY, 0);
  redirect(order.files.folder + "/out", O_WRONLY | O_CREAT | O_APPEND, 1);
  redirect(order.files.folder + "/err", O_WRONLY | O_CREAT | O_APPEND, 2);
  pthread_sigmask(SIG_SETMASK, &order.mask, nullptr);
  if (order.cpus.empty()) return;
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  for (const int cpu : order.cpus) CPU_SET(cpu, &cpus);
  ::sched_setaffinity(0, sizeof cpus, &cpus);  // may fail: the cpuset may be smaller now
}

// Runs the launcher until it ends.
AttemptEnd run_launcher(const KeeperOrder& order, SignalWatch& signals) {
  SpawnRequest request;
  request.program = order.program;
  request.argv = order.argv;
  request.environment = order.environment;
  request.signal_mask = order.mask;
  request.pipe_stdout = request.pipe_stderr = false;
  if (::chdir(order.folder.c_str()) != 0)
    return {kCannotStart, fmt::format("cannot enter {}: {}", order.folder, std::strerror(errno)),
            unix_time_s(), false};
  RankProcess launcher;
  try {
    launcher = spawn_rank(request);
  } catch (const std::exception& error) {
    return {kCannotStart, error.what(), unix_time_s(), false};
  }
  int told = 0;  // how often the launcher got SIGTERM
  for (;;) {
    pollfd fds[] = {{launcher.pidfd.get(), POLLIN, 0}, {signals.fd(), POLLIN, 0}};
    ::poll(fds, 2, -1);
    while (const std::optional<int> signal = signals.take()) {
      const bool repeats = *signal == SIGINT && told == 1;
      if (*signal == SIGTSTP || (told > 0 && !repeats)) continue;
      ++told;
      ::kill(launcher.pid, SIGTERM);
    }
    int status = 0;
    if (fds[0].revents != 0 && ::waitpid(launcher.pid, &status, WNOHANG) == launcher.pid)
      return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), "", unix_time_s(), told > 0};
  }
}

[[noreturn]] void keep(const KeeperOrder& order) {
  try {
    detach(order);
    SignalWatch signals;  // before the claim, which allows the daemon to send signals
    if (!claim(order.files, own_process_name())) ::_exit(0);
    write_end_at_last(order.files, run_launcher(order, signals));
  } catch (const std::exception& error) {
    complain(error.what());
    ::_exit(1);
  }
  ::_exit(0);
}

}  // namespace

std::string AttemptFiles::claim() const {
  return fmt::format("{}/claim-{}", folder, attempt);
}

std::string AttemptFiles::end() const {
  return fmt::format("{}/end-{}", folder, attempt);
}

void start_keeper(const KeeperOrder& order) {
  const pid_t middle = ::fork();
  if (middle < 0) cannot_start("fork");
  if (middle == 0) {  // its end makes the keeper a child of init, so that the daemon need not reap it
    const pid_t keeper = ::fork();
    if (keeper == 0) keep(order);
    ::_exit(keeper < 0 ? 1 : 0);
  }
  int status = 0;
  while (::waitpid(middle, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    errno = EAGAIN;
    cannot_start("fork");
  }
}

std::optional<ProcessName> claim_of(const AttemptFiles& files) {
  const std::optional<nlohmann::json> json = read_json(files.claim(), files);
  if (!json) return std::nullopt;
  try {
    return ProcessName{integer_of<pid_t>(json->at("pid")), integer_of<uint64_t>(json->at("started")),
                       json->at("boot").get<std::string>()};
  } catch (const nlohmann::json::exception&) {
    throw_damaged(files.claim(), files);
  }
}

bool void_claim(const AttemptFiles& files) {
  return claim(files, {});
}

std::optional<AttemptEnd> end_of(const AttemptFiles& files) {
  const std::optional<nlohmann::json> json = read_json(files.end(), files);
  if (!json) return std::nullopt;
  try {
    return AttemptEnd{integer_of<int>(json->at("status")), json->at("message").get<std::string>(),
                      json->at("ended").get<double>(), json->at("told").get<bool>()};
  } catch (const nlohmann::json::exception&) {
    throw_damaged(files.end(), files);
  }
}

}  // namespace starling
