#include "starling/launch/local_ranks.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>

#include "starling/launch/child_program.h"
#include "starling/launch/cpu_share.h"

namespace starling {

int free_port() {
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  socklen_t size = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  const bool bound =
      fd.valid() && ::bind(fd.get(), generic, size) == 0 && ::getsockname(fd.get(), generic, &size) == 0;
  return bound ? ntohs(address.sin_port) : 29500;
}

namespace {

constexpr int kHeldEveryMs = 50;  // between attempts to send a signal that is held
constexpr std::chrono::seconds kHeldFor{60};

}  // namespace

LocalRanks::LocalRanks(const LaunchOptions& options, const sigset_t& mask, bool direct)
    : options_(options), mask_(mask), direct_(direct), board_(StepBoard::create(options.world())) {
  if (options.rendezvous) rendezvous_ = options.rendezvous();
}

LocalRanks::~LocalRanks() {
  signal(SIGKILL, true);
  for (Child& child : children_) {
    if (child.running) ::waitpid(child.process.pid, nullptr, 0);
  }
  orphans_.end_all();
}

void LocalRanks::start(RankListener& listener) {
  const std::vector<Cpu> cpus = usable_cpus();
  const RankThreads threads = rank_threads(options_, cpus);
  if (const auto warning = crowd_warning(options_, cpus)) listener.on_warning(*warning);
  std::vector<std::vector<int>> shares;
  if (options_.pin) shares = cpu_shares(cpus, options_.ranks, threads.count);
  shares.resize(static_cast<size_t>(options_.ranks));
  const std::string program = options_.program.empty() ? own_program_path() : options_.program;
  const int port = options_.share.master_port > 0 ? options_.share.master_port : free_port();
  for (int i = 0; i < options_.ranks; ++i)
    start_one(i, program, threads, port, shares[static_cast<size_t>(i)]);
}

void LocalRanks::start_one(int index, const std::string& program, const RankThreads& threads, int master_port,
                           const std::vector<int>& cpus) {
  Child& child = children_.emplace_back();
  auto [error_read, error_write] = make_pipe();
  UniqueFd key;
  if (rendezvous_.key_fd) key = raised(rendezvous_.key_fd().release());
  SpawnRequest request;
  request.program = program;
  request.argv = options_.argv;
  request.environment =
      rank_environment(options_, index, threads, master_port, rendezvous_,
                       {.key = key.get(), .error = error_write.get(), .board = board_.fd()});
  request.cpus = cpus;
  request.inherit = {error_write.get(), board_.fd()};
  if (key.valid()) request.inherit.push_back(key.get());
  request.pipe_stdout = !direct_ || index != 0;
  request.pipe_stderr = !direct_ || index != 0 || ::isatty(STDERR_FILENO) != 1;
  request.signal_mask = mask_;
  const bool forks = options_.forks != nullptr && !options_.forks->empty();
  child.process = forks ? options_.forks->begin(request, options_.share.first + index) : spawn_rank(request);
  child.running = true;
  child.out = LineReader(std::move(child.process.out));
  child.err = LineReader(std::move(child.process.err));
  child.errors = LineReader(std::move(error_read));
}

void LocalRanks::add_to(std::vector<pollfd>& fds) const {
  for (const Child& child : children_) {
    if (child.running) fds.push_back({child.process.pidfd.get(), POLLIN, 0});
    for (const LineReader* reader : {&child.out, &child.err, &child.errors}) {
      if (reader->open()) fds.push_back({reader->fd(), POLLIN, 0});
    }
  }
}

void LocalRanks::take(RankListener& listener) {
  const int count = static_cast<int>(children_.size());
  for (int i = 0; i < count; ++i) {
    if (children_[static_cast<size_t>(i)].running) reap(i, listener);
  }
  for (int i = 0; i < count; ++i) {
    if (children_[static_cast<size_t>(i)].running) send_held(i, listener);
  }
  for (int i = 0; i < count; ++i) read(i, false, listener);
}

void LocalRanks::read(int index, bool last, RankListener& listener) {
  Child& child = children_[static_cast<size_t>(index)];
  const int rank = options_.share.first + index;
  const auto drain = [last](LineReader& reader, const LineReader::Take& take) {
    last ? reader.finish(take) : reader.read(take);
  };
  drain(child.errors, [&](const std::string& line) { listener.on_fault_line(rank, line); });
  drain(child.out, [&](const std::string& line) { listener.on_out(rank, line); });
  drain(child.err, [&](const std::string& line) { listener.on_err(rank, line); });
}

void LocalRanks::reap(int index, RankListener& listener) {
  Child& child = children_[static_cast<size_t>(index)];
  siginfo_t info{};
  if (::waitid(P_PID, static_cast<id_t>(child.process.pid), &info, WEXITED | WNOHANG) != 0 ||
      info.si_pid == 0)
    return;
  child.running = false;
  read(index, true, listener);
  listener.on_end(options_.share.first + index, {info.si_code != CLD_EXITED, info.si_status});
}

bool LocalRanks::running(int rank) const {
  const size_t index = static_cast<size_t>(rank - options_.share.first);
  return index < children_.size() && children_[index].running;
}

void LocalRanks::signal(int signal, bool whole_group) {
  const bool request = !whole_group && (signal == SIGUSR1 || signal == SIGUSR2);
  for (Child& child : children_) {
    if (!child.running) continue;
    if (request && would_end(child.process.pid, signal)) {
      child.held[signal] = clock_.now() + kHeldFor;
    } else {
      ::kill(whole_group ? -child.process.pid : child.process.pid, signal);
    }
  }
}

void LocalRanks::send_held(int index, RankListener& listener) {
  Child& child = children_[static_cast<size_t>(index)];
  const Nanoseconds now = clock_.now();
  std::erase_if(child.held, [&](const auto& held) {
    if (!would_end(child.process.pid, held.first)) return ::kill(child.process.pid, held.first) == 0;
    if (now < held.second) return false;
    listener.on_warning(
        fmt::format("rank {} does not handle SIG{}: it did not get the signal, which would end it",
                    options_.share.first + index, sigabbrev_np(held.first)));
    return true;
  });
}

int LocalRanks::patience() const {
  const bool holds = std::any_of(children_.begin(), children_.end(),
                                 [](const Child& child) { return child.running && !child.held.empty(); });
  return holds ? kHeldEveryMs : -1;
}

void LocalRanks::end(int rank) {
  if (running(rank))
    ::kill(-children_[static_cast<size_t>(rank - options_.share.first)].process.pid, SIGKILL);
}

}  // namespace starling
