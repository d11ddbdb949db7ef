#include "starling/launch/launcher.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <deque>
#include <optional>

#include "starling/base/error.h"
#include "starling/launch/child_program.h"
#include "starling/launch/cpu_share.h"
#include "starling/launch/fault.h"
#include "starling/launch/line_reader.h"
#include "starling/launch/message_fold.h"
#include "starling/launch/rank_log.h"
#include "starling/launch/rank_process.h"
#include "starling/launch/signal_watch.h"
#include "starling/launch/step_board.h"
#include "starling/telemetry/output.h"
#include "starling/telemetry/text_style.h"

namespace starling {
namespace {

struct Rank {
  RankProcess process;
  LineReader out, err, errors;
  RankLog log;
  bool running = false;
  bool lost = false;  // the others go on without it
  int status = 0;     // as a shell gives it: exit status, or 128 + signal
};

// A TCP port of the loopback interface that is free now, for MASTER_PORT; nothing of ours listens there.
int free_port() {
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  const bool bound =
      fd.valid() && ::bind(fd.get(), generic, size) == 0 && ::getsockname(fd.get(), generic, &size) == 0;
  return bound ? ntohs(address.sin_port) : 29500;
}

class Launch {
 public:
  Launch(const LaunchOptions& options, const Clock& clock);
  ~Launch();
  int run();

 private:
  void start_all();
  void start(int rank, const std::string& program, int threads, int master_port,
             const std::vector<int>& cpus);
  void wait();
  int poll_timeout() const;
  void on_signal(int signal);
  void stop_and_continue();
  void read_pipes(int rank, bool last);
  void on_error_line(int rank, const std::string& line);
  void on_exit(int rank);
  void note(Fault fault);
  bool may_be_lost(const Fault& fault) const;
  void lose(Fault fault);
  void act_on_fault();
  bool decided() const;
  void announce();
  std::string evidence(const Fault& first) const;
  void signal_running(int signal, bool whole_group);
  void say(Color color, const std::string& label, const std::string& text);
  int running() const;
  int still_working() const;
  int leader() const;
  int result() const;

  const LaunchOptions& options_;
  const Clock& clock_;
  SignalWatch signals_;  // before the store's threads start: they inherit the mask
  Rendezvous rendezvous_;
  StepBoard board_;
  FdOutput messages_, output_;
  const bool terminal_;
  MessageFold fold_;
  std::string log_folder_;
  std::deque<Rank> ranks_;

  std::vector<Fault> faults_;  // one a rank at most, in the order in which they were noticed
  std::optional<Nanoseconds> fault_at_;
  bool announced_ = false, terminated_ = false, killed_ = false;
  int interrupted_by_ = 0;
  Nanoseconds interrupted_at_{};
};

Launch::Launch(const LaunchOptions& options, const Clock& clock)
    : options_(options),
      clock_(clock),
      board_(StepBoard::create(options.ranks)),
      messages_(options.message_fd),
      output_(STDOUT_FILENO),
      terminal_(::isatty(options.message_fd) == 1),
      fold_(clock, [this](const std::string& line) { say(Color::kPlain, "", line); }, options.fold_window) {
  if (!options.run_dir.empty()) log_folder_ = make_log_folder(options.run_dir);
  if (options.rendezvous) rendezvous_ = options.rendezvous();
}

// Only where something threw: no child is left behind.
Launch::~Launch() {
  signal_running(SIGKILL, true);
  for (Rank& rank : ranks_) {
    if (rank.running) ::waitpid(rank.process.pid, nullptr, 0);
  }
}

void Launch::say(Color color, const std::string& label, const std::string& text) {
  // Rank 0's live line may stand on the terminal; it draws itself again.
  messages_.write(fmt::format("{}{}{}\n", terminal_ ? "\r\x1b[K" : "", paint(options_.color, color, label),
                              printable(text)));
}

void Launch::start_all() {
  const std::vector<Cpu> cpus = usable_cpus();
  const int cores = static_cast<int>(cpus.size());
  const int threads = threads_per_rank(options_, count_cores(cpus));
  if (!options_.quiet && cores > 0 && options_.ranks * threads > cores) {
    say(Color::kYellow, "warning: ",
        fmt::format(
            "{} rank{} of {} thread{} on {} core{}: they take turns; fewer ranks or threads would be faster",
            options_.ranks, options_.ranks == 1 ? "" : "s", threads, threads == 1 ? "" : "s", cores,
            cores == 1 ? "" : "s"));
  }
  std::vector<std::vector<int>> shares;
  if (options_.pin) shares = cpu_shares(cpus, options_.ranks, threads);
  shares.resize(static_cast<size_t>(options_.ranks));
  const std::string program = options_.program.empty() ? own_program_path() : options_.program;
  const int port = free_port();
  for (int r = 0; r < options_.ranks; ++r) start(r, program, threads, port, shares[static_cast<size_t>(r)]);
}

void Launch::start(int r, const std::string& program, int threads, int master_port,
                   const std::vector<int>& cpus) {
  Rank& rank = ranks_.emplace_back();
  if (!log_folder_.empty()) rank.log = RankLog(fmt::format("{}/rank-{}.log", log_folder_, r));
  auto [error_read, error_write] = make_pipe();
  UniqueFd key;
  if (rendezvous_.key_fd) key = rendezvous_.key_fd();
  SpawnRequest request;
  request.program = program;
  request.argv = options_.argv;
  request.environment =
      rank_environment(options_, r, threads, master_port, rendezvous_,
                       {.key = key.get(), .error = error_write.get(), .board = board_.fd()});
  request.cpus = cpus;
  request.inherit = {error_write.get(), board_.fd()};
  if (key.valid()) request.inherit.push_back(key.get());
  request.pipe_stdout = r != 0;
  request.pipe_stderr = r != 0 || ::isatty(STDERR_FILENO) != 1;
  request.signal_mask = signals_.mask_before();
  rank.process = spawn_rank(request);
  rank.running = true;
  rank.out = LineReader(std::move(rank.process.out));
  rank.err = LineReader(std::move(rank.process.err));
  rank.errors = LineReader(std::move(error_read));
}

int Launch::running() const {
  return static_cast<int>(
      std::count_if(ranks_.begin(), ranks_.end(), [](const Rank& r) { return r.running; }));
}

// Ranks that run and have reported no fault.
int Launch::still_working() const {
  int left = 0;
  for (int r = 0; r < static_cast<int>(ranks_.size()); ++r) {
    const bool faulty =
        std::any_of(faults_.begin(), faults_.end(), [r](const Fault& f) { return f.rank == r; });
    left += ranks_[static_cast<size_t>(r)].running && !faulty ? 1 : 0;
  }
  return left;
}

// The lowest rank that is not lost: the one that speaks for the run.
int Launch::leader() const {
  const auto left = std::find_if(ranks_.begin(), ranks_.end(), [](const Rank& r) { return !r.lost; });
  return static_cast<int>(left - ranks_.begin());
}

int Launch::run() {
  start_all();
  while (running() > 0) {
    wait();
    while (const std::optional<int> signal = signals_.take()) on_signal(*signal);
    for (int r = 0; r < options_.ranks; ++r) {
      if (ranks_[static_cast<size_t>(r)].running) on_exit(r);
    }
    for (int r = 0; r < options_.ranks; ++r) read_pipes(r, false);
    act_on_fault();
    fold_.poll();
  }
  if (!faults_.empty() && !announced_) announce();
  fold_.finish();
  return result();
}

// Sleeps until a signal, output, the end of a rank, or the next deadline.
void Launch::wait() {
  std::vector<pollfd> fds{{signals_.fd(), POLLIN, 0}};
  for (const Rank& rank : ranks_) {
    if (rank.running) fds.push_back({rank.process.pidfd.get(), POLLIN, 0});
    for (const LineReader* reader : {&rank.out, &rank.err, &rank.errors}) {
      if (reader->open()) fds.push_back({reader->fd(), POLLIN, 0});
    }
  }
  ::poll(fds.data(), fds.size(), poll_timeout());
}

int Launch::poll_timeout() const {
  std::optional<Nanoseconds> next = fold_.deadline();
  const auto until = [&next](Nanoseconds when) { next = std::min(next.value_or(when), when); };
  if (fault_at_) {
    if (!announced_) until(*fault_at_ + options_.settle);
    if (!terminated_) until(*fault_at_ + options_.term_after);
    if (!killed_) until(*fault_at_ + options_.kill_after);
  }
  if (!next) return -1;
  const Nanoseconds now = clock_.now();
  // An undecided announcement waits for term_after: not less than 10 ms a turn.
  if (*next <= now) return 10;
  return static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(*next - now).count());
}

void Launch::on_signal(int signal) {
  if (signal == SIGTSTP) return stop_and_continue();
  const Nanoseconds now = clock_.now();
  if (interrupted_by_ != 0 && now - interrupted_at_ < options_.repeat_gap) return;
  const char* name = signal == SIGINT ? "Ctrl-C" : signal == SIGTERM ? "SIGTERM" : "the terminal is gone";
  if (interrupted_by_ != 0 || fault_at_) {
    say(Color::kYellow, "", fmt::format("{}: ending the ranks at once", name));
    killed_ = true;
    signal_running(SIGKILL, true);
  } else {
    say(Color::kYellow, "", fmt::format("{}: the ranks save and end; once more to end at once", name));
    signal_running(SIGTERM, false);
  }
  interrupted_by_ = signal;
  interrupted_at_ = now;
}

// Ctrl-Z: the ranks, in process groups of their own, did not get it.
void Launch::stop_and_continue() {
  signal_running(SIGSTOP, true);
  ::raise(SIGSTOP);
  signal_running(SIGCONT, true);
}

void Launch::signal_running(int signal, bool whole_group) {
  for (const Rank& rank : ranks_) {
    if (rank.running) ::kill(whole_group ? -rank.process.pid : rank.process.pid, signal);
  }
}

void Launch::read_pipes(int r, bool last) {
  Rank& rank = ranks_[static_cast<size_t>(r)];
  const auto drain = [last](LineReader& reader, const LineReader::Take& take) {
    last ? reader.finish(take) : reader.read(take);
  };
  drain(rank.errors, [&](const std::string& line) { on_error_line(r, line); });
  drain(rank.out, [&](const std::string& line) {
    rank.log.append(line);
    if (r == leader()) output_.write(line + "\n");
  });
  drain(rank.err, [&](const std::string& line) {
    rank.log.append(line);
    if (r == 0) {
      messages_.write(line + "\n");
    } else if (!fault_at_) {
      fold_.add(r, line);  // after a fault the rest is in the logs
    }
  });
}

void Launch::on_error_line(int r, const std::string& line) {
  std::optional<Fault> fault = parse_fault_line(r, line);
  if (!fault) return;
  ranks_[static_cast<size_t>(r)].log.append("fatal: " + fault->message);
  if (fault->code != ErrorCode::kInterrupted) note(std::move(*fault));
}

void Launch::note(Fault fault) {
  const auto known =
      std::find_if(faults_.begin(), faults_.end(), [&](const Fault& f) { return f.rank == fault.rank; });
  if (known != faults_.end()) return;
  fault.step = board_.get(fault.rank);
  if (may_be_lost(fault)) return lose(std::move(fault));
  faults_.push_back(std::move(fault));
  if (!fault_at_) fault_at_ = clock_.now();
}

// Killed, not failed, in a run whose ranks have all begun, and somebody is left to go on.
bool Launch::may_be_lost(const Fault& fault) const {
  constexpr int kToldToEnd = 128 + SIGINT;  // by the others, who took it for lost
  const bool killed = fault.signal != 0 || fault.status == kToldToEnd;
  if (fault.rank >= options_.expendable || !killed || fault_at_ || interrupted_by_ != 0) return false;
  bool left = false;
  for (int r = 0; r < options_.expendable; ++r) {
    if (board_.get(r) < 0) return false;
    left = left || (r != fault.rank && !ranks_[static_cast<size_t>(r)].lost);
  }
  return left;
}

void Launch::lose(Fault fault) {
  ranks_[static_cast<size_t>(fault.rank)].lost = true;
  const auto left = std::count_if(ranks_.begin(), ranks_.begin() + options_.expendable,
                                  [](const Rank& r) { return !r.lost; });
  fold_.forget(fault.rank);
  if (options_.quiet) return;
  say(Color::kYellow,
      "warning: ", fmt::format("{}; {} rank{} on", describe(fault), left, left == 1 ? " goes" : "s go"));
}

void Launch::on_exit(int r) {
  Rank& rank = ranks_[static_cast<size_t>(r)];
  siginfo_t info{};
  if (::waitid(P_PID, static_cast<id_t>(rank.process.pid), &info, WEXITED | WNOHANG) != 0 || info.si_pid == 0)
    return;
  rank.running = false;
  read_pipes(r, true);
  const bool exited = info.si_code == CLD_EXITED;
  rank.status = exited ? info.si_status : 128 + info.si_status;
  rank.log.append(exited ? fmt::format("ended with exit status {}", info.si_status)
                         : fmt::format("ended by signal {}", info.si_status));
  // What we did to it ourselves is no fault of its own; nor is any status after the user asked it to end.
  const bool ours = !exited && ((killed_ && info.si_status == SIGKILL) ||
                                ((terminated_ || interrupted_by_ != 0) && info.si_status == SIGTERM));
  if (rank.status == 0 || ours || (exited && interrupted_by_ != 0)) return;
  Fault fault;
  fault.rank = r;
  (exited ? fault.status : fault.signal) = info.si_status;
  note(std::move(fault));
}

// True when the first fault will not change any more.
bool Launch::decided() const {
  const Nanoseconds age = clock_.now() - *fault_at_;
  return (age >= options_.settle && !is_consequence(*first_fault(faults_))) || age >= options_.term_after;
}

void Launch::act_on_fault() {
  if (!fault_at_) return;
  if (!announced_ && running() > 0 && decided()) announce();
  const Nanoseconds age = clock_.now() - *fault_at_;
  if (!terminated_ && age >= options_.term_after) {
    terminated_ = true;
    signal_running(SIGTERM, false);
  }
  if (!killed_ && age >= options_.kill_after) {
    killed_ = true;
    signal_running(SIGKILL, true);
  }
}

void Launch::announce() {
  announced_ = true;
  const Fault& first = *first_fault(faults_);
  std::string text = describe(first);
  const auto same = std::count_if(faults_.begin(), faults_.end(), [&](const Fault& f) {
    return f.reported && first.reported && f.rank != first.rank && f.message == first.message;
  });
  if (same > 0) text += fmt::format(" ({} other rank{} said the same)", same, same == 1 ? "" : "s");
  text += evidence(first);
  for (const std::string& line : options_.diagnosis ? options_.diagnosis() : std::vector<std::string>{})
    text += "\n  " + line;
  const int left = still_working();
  if (left > 0) text += fmt::format("\n  {} other rank{} being ended", left, left == 1 ? " is" : "s are");
  if (!log_folder_.empty()) text += fmt::format("\n  logs: {}", log_folder_);
  fold_.forget(first.rank);  // it is in the evidence
  fold_.finish();            // what came before stands before
  say(Color::kRed, "error: ", text);
}

// The last lines of a rank that could not say why it ended.
std::string Launch::evidence(const Fault& first) const {
  const Rank& rank = ranks_[static_cast<size_t>(first.rank)];
  if (first.reported || first.rank == 0) return {};
  std::string text;
  for (const std::string& line : rank.log.tail()) {
    if (!line.starts_with("ended ")) text += "\n    | " + line;
  }
  return text.empty() ? text : "\n  its last lines:" + text;
}

int Launch::result() const {
  if (const Fault* first = first_fault(faults_)) {
    // Not the status of its process, which may have been ended before it could exit by itself.
    if (first->reported && options_.status_of) return options_.status_of(first->code);
    const int status = ranks_[static_cast<size_t>(first->rank)].status;
    return status >= 2 && status <= 6 ? status : 1;
  }
  if (killed_ && interrupted_by_ != 0) return 128 + interrupted_by_;
  int status = 0;
  for (const Rank& rank : ranks_) status = std::max(status, rank.lost ? 0 : rank.status);
  return status;
}

}  // namespace

int launch(const LaunchOptions& options, const Clock& clock) {
  if (options.ranks < 1)
    throw ConfigError("--ranks",
                      fmt::format("{} is not a number of processes; give 1 or more", options.ranks));
  return Launch(options, clock).run();
}

}  // namespace starling
