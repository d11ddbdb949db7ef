#include "starling/launch/launcher.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "starling/base/error.h"
#include "starling/launch/fault.h"
#include "starling/launch/local_ranks.h"
#include "starling/launch/message_fold.h"
#include "starling/launch/rank_log.h"
#include "starling/launch/ranks.h"
#include "starling/launch/remote_ranks.h"
#include "starling/launch/signal_watch.h"
#include "starling/telemetry/output.h"
#include "starling/telemetry/text_style.h"

namespace starling {
namespace {

// The status of a rank that ends regularly after an interruption of its run, unless the rank itself got
// another signal. The launcher forwards every signal that interrupts as SIGTERM.
constexpr int kInterruptedStatus = 128 + SIGTERM;
// The status of a job that lost a rank. It is also the status of a communication error.
constexpr int kLostStatus = 4;

struct Rank {
  RankLog log;
  bool lost = false;         // the rank was lost and the remaining ranks continue
  bool interrupted = false;  // the rank has reported that a signal interrupted its run
  std::string stuck;         // why the other ranks gave the rank up; empty: they did not
  int status = 0;            // the exit status, or 128 + signal, as in a shell
  bool ended = false;

  // Returns true if the rank ended regularly after an interruption.
  bool interrupted_in_order() const {
    return interrupted && (status == kInterruptedStatus || status == 128 + SIGINT || status == 128 + SIGHUP);
  }
};

std::unique_ptr<Ranks> make_ranks(const LaunchOptions& options, SignalWatch& signals) {
  if (options.hosts.hosts.empty())
    return std::make_unique<LocalRanks>(options, signals.mask_before(), /*direct=*/true);
  return std::make_unique<RemoteRanks>(options, signals);
}

class Launch final : private RankListener {
 public:
  Launch(const LaunchOptions& options, const Clock& clock);
  int run();

 private:
  void on_out(int rank, const std::string& line) override;
  void on_err(int rank, const std::string& line) override;
  void on_fault_line(int rank, const std::string& line) override;
  void on_end(int rank, RankEnd end) override;
  void on_lost(int rank, const std::string& why) override;
  void on_warning(const std::string& text) override;

  void wait();
  int poll_timeout() const;
  void on_signal(int signal);
  void stop_and_continue();
  void end_stuck(const StuckRank& stuck);
  void note(Fault fault);
  void accept(Fault fault);
  void decide(bool now);
  bool is_expendable(const Fault& fault) const;
  bool all_have_begun() const;
  void lose(Fault fault);
  void act_on_fault();
  bool decided() const;
  void announce();
  std::string evidence(const Fault& first) const;
  void say(Color color, const std::string& label, const std::string& text);
  int running() const;
  int still_working() const;
  int leader() const;
  int result() const;
  Rank& at(int rank) { return ranks_[static_cast<size_t>(rank)]; }

  const LaunchOptions& options_;
  const Clock& clock_;
  SignalWatch signals_{
      /*requests=*/true};  // constructed before the threads of the store, which inherit the signal mask
  std::unique_ptr<Ranks> processes_;
  FdOutput messages_, output_;
  const bool terminal_;
  MessageFold fold_;
  std::string log_folder_;
  std::deque<Rank> ranks_;

  std::vector<Fault> faults_;  // at most one per rank, in the order in which they were noticed
  std::vector<std::pair<Fault, Nanoseconds>> undecided_;  // faults, and when they must be decided
  std::optional<Nanoseconds> fault_at_;
  bool announced_ = false, terminated_ = false, killed_ = false;
  int interrupted_by_ = 0;
  Nanoseconds interrupted_at_{};
};

Launch::Launch(const LaunchOptions& options, const Clock& clock)
    : options_(options),
      clock_(clock),
      processes_(make_ranks(options, signals_)),
      messages_(options.message_fd),
      output_(STDOUT_FILENO),
      terminal_(::isatty(options.message_fd) == 1),
      fold_(clock, [this](const std::string& line) { say(Color::kPlain, "", line); }, options.fold_window) {
  if (!options.run_dir.empty()) log_folder_ = make_log_folder(options.run_dir);
  for (int r = 0; r < options.ranks; ++r) {
    ranks_.emplace_back();
    if (!log_folder_.empty()) at(r).log = RankLog(fmt::format("{}/rank-{}.log", log_folder_, r));
  }
}

void Launch::say(Color color, const std::string& label, const std::string& text) {
  // Erases the live line of rank 0, which rank 0 draws again.
  messages_.write(fmt::format("{}{}{}\n", terminal_ ? "\r\x1b[K" : "", paint(options_.color, color, label),
                              printable(text)));
}

void Launch::on_warning(const std::string& text) {
  if (!options_.quiet) say(Color::kYellow, "warning: ", text);
}

int Launch::running() const {
  int count = 0;
  for (int r = 0; r < options_.ranks; ++r) count += processes_->running(r) ? 1 : 0;
  return count;
}

// Returns the number of ranks that run and have reported no fault.
int Launch::still_working() const {
  int left = 0;
  for (int r = 0; r < static_cast<int>(ranks_.size()); ++r) {
    const bool faulty =
        std::any_of(faults_.begin(), faults_.end(), [r](const Fault& f) { return f.rank == r; });
    left += processes_->running(r) && !faulty ? 1 : 0;
  }
  return left;
}

// Returns the lowest rank that is not lost. Its output is the output of the run.
int Launch::leader() const {
  const auto left = std::find_if(ranks_.begin(), ranks_.end(), [](const Rank& r) { return !r.lost; });
  return static_cast<int>(left - ranks_.begin());
}

int Launch::run() {
  processes_->start(*this);
  while (running() > 0) {
    wait();
    while (const std::optional<int> signal = signals_.take()) on_signal(*signal);
    processes_->take(*this);
    decide(false);
    act_on_fault();
    fold_.poll();
  }
  decide(true);
  if (!faults_.empty() && !announced_) announce();
  fold_.finish();
  return result();
}

// Waits for a signal, output, the end of a rank, or the next deadline.
void Launch::wait() {
  std::vector<pollfd> fds{{signals_.fd(), POLLIN, 0}};
  processes_->add_to(fds);
  const int ours = poll_timeout(), theirs = processes_->patience();
  ::poll(fds.data(), fds.size(), ours < 0 || theirs < 0 ? std::max(ours, theirs) : std::min(ours, theirs));
}

int Launch::poll_timeout() const {
  std::optional<Nanoseconds> next = fold_.deadline();
  const auto until = [&next](Nanoseconds when) { next = std::min(next.value_or(when), when); };
  for (const auto& [fault, when] : undecided_) until(when);
  if (fault_at_) {
    if (!announced_) until(*fault_at_ + options_.settle);
    if (!terminated_) until(*fault_at_ + options_.term_after);
    if (!killed_) until(*fault_at_ + options_.kill_after);
  }
  if (!next) return -1;
  const Nanoseconds now = clock_.now();
  // An undecided announcement waits until term_after. Each iteration takes at least 10 ms.
  if (*next <= now) return 10;
  return static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(*next - now).count());
}

void Launch::on_signal(int signal) {
  if (signal == SIGTSTP) return stop_and_continue();
  if (signal == SIGUSR1 || signal == SIGUSR2) return processes_->signal(signal, false);
  const Nanoseconds now = clock_.now();
  if (interrupted_by_ != 0 && now - interrupted_at_ < options_.repeat_gap) return;
  const char* name = signal == SIGINT ? "Ctrl-C" : signal == SIGTERM ? "SIGTERM" : "SIGHUP";
  if (interrupted_by_ != 0 || fault_at_) {
    say(Color::kYellow, "", fmt::format("{}: killing the ranks", name));
    killed_ = true;
    processes_->signal(SIGKILL, true);
  } else {
    say(Color::kYellow, "",
        fmt::format("{}: the ranks save their state and end. Repeat the signal to kill them", name));
    processes_->signal(SIGTERM, false);
  }
  interrupted_by_ = signal;
  interrupted_at_ = now;
}

// Ctrl-Z does not reach the ranks, because each has its own process group.
void Launch::stop_and_continue() {
  processes_->signal(SIGSTOP, true);
  ::raise(SIGSTOP);
  processes_->signal(SIGCONT, true);
}

void Launch::on_out(int r, const std::string& line) {
  at(r).log.append(line);
  if (r == leader()) output_.write(line + "\n");
}

void Launch::on_err(int r, const std::string& line) {
  at(r).log.append(line);
  if (r == 0) {
    messages_.write(line + "\n");
  } else if (!fault_at_) {
    fold_.add(r, line);  // later lines are in the logs only
  }
}

void Launch::on_fault_line(int r, const std::string& line) {
  if (const std::optional<StuckRank> stuck = parse_stuck_line(line)) return end_stuck(*stuck);
  std::optional<Fault> fault = parse_fault_line(r, line);
  if (!fault) return;
  at(r).log.append("fatal: " + fault->message);
  at(r).interrupted = fault->code == ErrorCode::kInterrupted;
  if (!at(r).interrupted) note(std::move(*fault));
}

// Ends a rank that the other ranks have given up. The rank may be stopped, so that only SIGKILL ends it. The
// other ranks continue once they know that it is dead.
void Launch::end_stuck(const StuckRank& stuck) {
  if (stuck.rank < 0 || stuck.rank >= options_.expendable || !processes_->running(stuck.rank)) return;
  Rank& rank = at(stuck.rank);
  if (rank.lost || !rank.stuck.empty()) return;
  rank.stuck = stuck.why;
  rank.log.append("ended by the launcher: " + stuck.why);
  processes_->end(stuck.rank);
}

void Launch::note(Fault fault) {
  const auto known =
      std::find_if(faults_.begin(), faults_.end(), [&](const Fault& f) { return f.rank == fault.rank; });
  if (known != faults_.end()) return;
  fault.step = StepBoard::last_step(processes_->step(fault.rank));
  fault.host = processes_->host_of(fault.rank);
  if (!is_expendable(fault)) return accept(std::move(fault));
  if (all_have_begun()) return lose(std::move(fault));
  // The reports of other hosts that their ranks have started may be under way.
  if (options_.hosts.hosts.empty()) return accept(std::move(fault));
  undecided_.emplace_back(std::move(fault), clock_.now() + options_.term_after);
}

void Launch::accept(Fault fault) {
  faults_.push_back(std::move(fault));
  if (!fault_at_) fault_at_ = clock_.now();
}

// Decides faults that may be losses after which the remaining ranks continue.
void Launch::decide(bool now) {
  for (size_t i = 0; i < undecided_.size();) {
    auto& [fault, until] = undecided_[i];
    const bool lost = is_expendable(fault) && all_have_begun();
    if (!lost && !now && is_expendable(fault) && clock_.now() < until) {
      ++i;
      continue;
    }
    Fault decided = std::move(fault);
    undecided_.erase(undecided_.begin() + static_cast<std::ptrdiff_t>(i));
    lost ? lose(std::move(decided)) : accept(std::move(decided));
  }
}

// Returns true if the rank was killed rather than failed, and a rank remains that can continue.
bool Launch::is_expendable(const Fault& fault) const {
  constexpr int kToldToEnd = 128 + SIGINT;  // the other ranks considered it lost and asked it to end
  const bool killed = fault.signal != 0 || fault.status == kToldToEnd;
  if (fault.rank >= options_.expendable || !killed || fault_at_ || interrupted_by_ != 0) return false;
  for (int r = 0; r < options_.expendable; ++r) {
    const Rank& other = ranks_[static_cast<size_t>(r)];
    if (r != fault.rank && !other.lost && !other.ended) return true;
  }
  return false;
}

bool Launch::all_have_begun() const {
  for (int r = 0; r < options_.expendable; ++r) {
    if (processes_->step(r) < 0) return false;
  }
  return true;
}

void Launch::lose(Fault fault) {
  ranks_[static_cast<size_t>(fault.rank)].lost = true;
  const auto left = std::count_if(ranks_.begin(), ranks_.begin() + options_.expendable,
                                  [](const Rank& r) { return !r.lost; });
  fold_.forget(fault.rank);
  if (options_.quiet) return;
  say(Color::kYellow, "warning: ",
      fmt::format("{}. {} rank{}", describe(fault), left, left == 1 ? " continues" : "s continue"));
}

void Launch::on_end(int r, RankEnd end) {
  Rank& rank = at(r);
  rank.status = end.status();
  rank.ended = true;
  rank.log.append(fmt::format("ended {} {}", end.signalled ? "by signal" : "with exit status", end.number));
  // A signal of the launcher is not a fault of the rank. A status after the user interrupted the run is not a
  // fault, either.
  const bool ours = end.signalled && ((killed_ && end.number == SIGKILL) ||
                                      ((terminated_ || interrupted_by_ != 0) && end.number == SIGTERM));
  const bool in_order = !end.signalled && rank.interrupted_in_order();
  if (rank.status == 0 || ours || in_order || (!end.signalled && interrupted_by_ != 0)) return;
  Fault fault;
  fault.rank = r;
  (end.signalled ? fault.signal : fault.status) = end.number;
  if (end.signalled) fault.code = ErrorCode::kComm;  // the rank was lost
  if (end.signalled && end.number == SIGKILL) fault.stuck = rank.stuck;
  note(std::move(fault));
}

void Launch::on_lost(int r, const std::string& why) {
  Rank& rank = at(r);
  rank.status = kLostStatus;
  rank.log.append(why);
  if (killed_) return;
  Fault fault;
  fault.rank = r;
  fault.reported = true;
  fault.with_host = true;
  fault.code = ErrorCode::kComm;
  fault.message = why;
  note(std::move(fault));
}

// Returns true if no later report can change which fault was the first.
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
    processes_->signal(SIGTERM, false);
  }
  if (!killed_ && age >= options_.kill_after) {
    killed_ = true;
    processes_->signal(SIGKILL, true);
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
  // A rank that named its own fault waited for nobody.
  const bool waited = !first.reported || first.code == ErrorCode::kComm || first.code == ErrorCode::kTimeout;
  std::vector<std::string> who_waits;
  if (waited && options_.diagnosis) who_waits = options_.diagnosis();
  for (const std::string& line : who_waits) text += "\n  " + line;
  const int left = still_working();
  if (left > 0) text += fmt::format("\n  {} other rank{} being ended", left, left == 1 ? " is" : "s are");
  if (!log_folder_.empty()) text += fmt::format("\n  logs: {}", log_folder_);
  fold_.forget(first.rank);  // the evidence contains its lines
  fold_.finish();            // prints earlier lines before the error
  say(Color::kRed, "error: ", text);
  if (options_.json) output_.write(error_event(first));
}

// Returns the last lines of a rank that could not report why it ended.
std::string Launch::evidence(const Fault& first) const {
  const Rank& rank = ranks_[static_cast<size_t>(first.rank)];
  if (first.reported || first.rank == 0) return {};
  std::string text;
  for (const std::string& line : rank.log.tail()) {
    if (!line.starts_with("ended ")) text += "\n    | " + line;
  }
  return text.empty() ? text : "\n  last lines of the rank:" + text;
}

int Launch::result() const {
  if (const Fault* first = first_fault(faults_)) {
    // The launcher may have killed the process before it could exit with its own status.
    if (first->reported && options_.status_of) return options_.status_of(first->code);
    if (first->signal != 0) return kLostStatus;
    const int status = ranks_[static_cast<size_t>(first->rank)].status;
    return status >= 2 && status <= 6 ? status : 1;
  }
  if (killed_ && interrupted_by_ != 0) return 128 + interrupted_by_;
  int failed = 0, interrupted = 0;  // statuses
  for (const Rank& rank : ranks_) {
    if (rank.lost) continue;
    if (!rank.interrupted_in_order())
      failed = std::max(failed, rank.status);
    else if (interrupted == 0 || interrupted == kInterruptedStatus)  // the signal that a rank got is known
      interrupted = rank.status;
  }
  if (failed != 0 || interrupted == 0) return failed;
  return interrupted_by_ != 0 ? 128 + interrupted_by_ : interrupted;
}

}  // namespace

int launch(const LaunchOptions& options, const Clock& clock) {
  if (options.ranks < 1)
    throw ConfigError("--ranks",
                      fmt::format("{} is not a number of processes. Give 1 or more", options.ranks));
  return Launch(options, clock).run();
}

}  // namespace starling
