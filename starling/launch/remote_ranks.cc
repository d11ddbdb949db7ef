#include "starling/launch/remote_ranks.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string_view>

#include "starling/base/error.h"
#include "starling/launch/child_program.h"
#include "starling/launch/host_agent.h"
#include "starling/launch/launch_rendezvous.h"
#include "starling/launch/remote_command.h"
#include "starling/launch/version.h"
#include "starling/telemetry/output.h"

namespace starling {
namespace {

constexpr auto kEndPatience = std::chrono::milliseconds(2000);
constexpr size_t kWords = 4;
constexpr int kBeats = 6;       // number of "alive" messages in HostsOptions::silence
constexpr int kKillShare = 10;  // a host must end within silence / kKillShare after SIGKILL for its ranks

bool readable(int fd) {
  pollfd polled{fd, POLLIN, 0};
  return ::poll(&polled, 1, 0) > 0;
}

}  // namespace

RemoteRanks::RemoteRanks(const LaunchOptions& options, SignalWatch& signals)
    : options_(options),
      mask_(signals.mask_before()),
      signals_(signals),
      program_(options.hosts.program.empty() ? own_program_path() : options.hosts.program),
      folder_(std::filesystem::current_path()),
      running_(static_cast<size_t>(options.ranks)),
      steps_(static_cast<size_t>(options.ranks), -1) {}

RemoteRanks::~RemoteRanks() {
  beat_ = {};
  for (Host& host : hosts_) host.in.reset();  // the agent then kills its ranks
  const Deadline deadline = deadline_in(kEndPatience);
  for (Host& host : hosts_) {
    if (host.end) continue;
    while (!readable(host.process.pidfd.get()) && !has_passed(deadline)) {
      pollfd fds[] = {{host.process.pidfd.get(), POLLIN, 0},
                      {host.out.open() ? host.out.fd() : -1, POLLIN, 0}};
      ::poll(fds, 2, poll_timeout(deadline));
      host.out.read([](const std::string&) {});  // so that the agent does not wait for a reader
    }
    ::kill(-host.process.pid, SIGKILL);
    ::waitpid(host.process.pid, nullptr, 0);
  }
}

void RemoteRanks::start(RankListener& listener) {
  answer_by_ = deadline_in(options_.hosts.patience);
  int first = 0;
  for (const HostsOptions::Host& named : options_.hosts.hosts) {
    Host& host = hosts_.emplace_back();
    host.name = named.name;
    host.hear_by = answer_by_;
    host.first = first;
    host.count = named.ranks;
    first += named.ranks;
    try {
      connect(host);
    } catch (...) {
      hosts_.pop_back();
      throw;
    }
  }
  await([](const Host& host) { return host.hello.has_value(); }, "answered", listener);
  check_hosts();
  const JobIdentity identity = make_job_identity();
  for (const Host& host : hosts_) send(host, to_line(job_for(host, identity)));
  await([](const Host& host) { return host.listening.has_value(); }, "taken its job", listener);
  const std::string address = hosts_.size() > 1 ? rendezvous_address(listener) : "";
  const int port = hosts_.front().port;
  for (const Host& host : hosts_) send(host, fmt::format("go {} {}", port, address));
  std::fill(running_.begin(), running_.end(), true);
  for (Host& host : hosts_) host.hear_by = deadline_in(options_.hosts.silence);
  beat_ = std::jthread([this](const std::stop_token& stop) { beat(stop); });
}

void RemoteRanks::connect(Host& host) {
  SpawnRequest request;
  for (const char* const* entry = options_.environment; entry && *entry; ++entry)
    request.environment.emplace_back(*entry);
  if (is_this_host(host.name)) {
    request.program = own_program_path();
    request.argv = {request.program, std::string(kHostAgentArgument)};
  } else {
    request.argv = words_of_line(options_.hosts.command);
    request.program = program_to_reach(request.argv.empty() ? "" : request.argv.front(), request.environment);
    request.argv.push_back(host.name);
    request.argv.push_back(fmt::format("exec {} {}", shell_quoted(program_), kHostAgentArgument));
  }
  auto [in_read, in_write] = make_pipe();
  ::fcntl(in_read.get(), F_SETFL, 0);
  ::fcntl(in_write.get(), F_SETFL, O_NONBLOCK);  // if nobody reads the pipe, the wait is limited
  request.in = in_read.get();
  request.signal_mask = mask_;
  host.process = spawn_rank(request);
  host.in = std::move(in_write);
  host.out = LineReader(std::move(host.process.out), kLongestHostLine);
  host.err = LineReader(std::move(host.process.err));
}

void RemoteRanks::await(const Test& done, const std::string& for_what, RankListener& listener) {
  for (;;) {
    const auto missing = std::find_if_not(hosts_.begin(), hosts_.end(), done);
    if (missing == hosts_.end()) return;
    if (has_passed(answer_by_)) {
      throw TimeoutError(fmt::format("host {} has not {} within {} s{}; try: {} {} true", missing->name,
                                     for_what, options_.hosts.patience.count() / 1000,
                                     last_words(missing->words), options_.hosts.command, missing->name));
    }
    std::vector<pollfd> fds{{signals_.fd(), POLLIN, 0}};
    add_to(fds);
    ::poll(fds.data(), fds.size(),
           patience() < 0 ? poll_timeout(answer_by_) : std::min(poll_timeout(answer_by_), patience()));
    while (const std::optional<int> signal = signals_.take()) {
      if (*signal == SIGINT || *signal == SIGTERM || *signal == SIGHUP)
        throw Error(ErrorCode::kInterrupted, "the run was interrupted before its ranks were started");
      if (*signal == SIGTSTP) ::raise(SIGSTOP);
    }
    for (Host& host : hosts_) {
      read(host, listener);
      reap(host, listener);
      if (host.refusal || (host.end && !done(host))) give_up_on(host);
    }
  }
}

// Throws the error of a host that ended, or refused to continue, before its ranks were started.
void RemoteRanks::give_up_on(const Host& host) const {
  if (host.refusal)
    throw Error(host.refusal->first, fmt::format("host {}: {}", host.name, host.refusal->second));
  throw connection_error(options_.hosts.command, program_, host.name, *host.end, host.words);
}

void RemoteRanks::check_hosts() const {
  for (const Host& host : hosts_) {
    if (host.hello->version != program_version() || host.hello->protocol != kHostProtocol) {
      throw ConfigError(
          "launch.program",
          fmt::format(
              "host {} has starling {} at {}, and this is {}. Install the same version on all hosts, or "
              "give its path with --set launch.program=PATH",
              host.name, host.hello->version, program_, program_version()));
    }
    for (const Host& other : hosts_) {
      if (&other == &host) break;
      if (other.hello->host_id != host.hello->host_id) continue;
      throw ConfigError(
          "launch.hosts",
          fmt::format("{} and {} are one host, whose own name is {}. Name it once with all "
                      "its ranks, {}:{}",
                      other.name, host.name, host.hello->host_name, other.name, other.count + host.count));
    }
  }
}

HostJob RemoteRanks::job_for(const Host& host, const JobIdentity& identity) const {
  HostJob job{identity.job_id, identity.key};
  job.folder = folder_;
  job.program = options_.program;
  job.argv = options_.argv;
  job.environment = forwarded_environment(options_.environment);
  job.run_dir = options_.run_dir;
  job.interface = options_.hosts.interface;
  job.security = options_.hosts.security;
  job.dead_after_ms = static_cast<int>(options_.hosts.dead_after.count());
  job.first = host.first;
  job.ranks = host.count;
  job.world = options_.ranks;
  job.threads = options_.threads;
  job.reach_ms = static_cast<int>(options_.hosts.reach.count());
  job.silence_ms = static_cast<int>(options_.hosts.silence.count());
  job.pin = options_.pin;
  job.listens = hosts_.size() > 1 && &host == &hosts_.front();
  return job;
}

// Returns the address of the rendezvous: an address of the first host that all other hosts reach.
std::string RemoteRanks::rendezvous_address(RankListener& listener) {
  const Host& first = hosts_.front();
  const std::vector<std::string>& offered = *first.listening;
  for (const Host& host : hosts_) {
    if (&host != &first) send(host, fmt::format("reach {}", fmt::join(offered, " ")));
  }
  await([&](const Host& host) { return &host == &first || host.reached; },
        "tried the addresses of the first host", listener);
  std::string who;
  for (const std::string& address : offered) {
    const auto fails = std::find_if(std::next(hosts_.begin()), hosts_.end(), [&](const Host& host) {
      return std::find(host.reached->begin(), host.reached->end(), address) == host.reached->end();
    });
    if (fails == hosts_.end()) return address;
    who = fails->name;
  }
  if (offered.empty())
    throw CommError(fmt::format("host {} has no network address for the rendezvous", first.name));
  throw CommError(fmt::format(
      "host {} does not reach host {} at {}. Check the firewall between them, or name their network "
      "with --set comm.interface=NAME",
      who, first.name, fmt::join(offered, ", ")));
}

void RemoteRanks::add_to(std::vector<pollfd>& fds) const {
  for (const Host& host : hosts_) {
    if (!host.end) fds.push_back({host.process.pidfd.get(), POLLIN, 0});
    for (const LineReader* reader : {&host.out, &host.err}) {
      if (reader->open()) fds.push_back({reader->fd(), POLLIN, 0});
    }
  }
}

int RemoteRanks::patience() const {
  int least = -1;
  for (const Host& host : hosts_) {
    const int left = poll_timeout(host.closing.value_or(host.hear_by));
    if (!host.end) least = least < 0 ? left : std::min(least, left);
  }
  return least;
}

// Runs on its own thread, because the launcher's thread may block on its output, for example after Ctrl-S.
void RemoteRanks::beat(const std::stop_token& stop) {
  std::unique_lock lock(inputs_);
  while (!stop.stop_requested()) {
    for (const Host& host : hosts_) {
      if (host.in.valid()) send(host, "alive");
    }
    next_beat_.wait_for(lock, stop, options_.hosts.silence / kBeats, [] { return false; });
  }
}

void RemoteRanks::take(RankListener& listener) {
  for (Host& host : hosts_) {
    read(host, listener);
    if (!host.closing && has_passed(host.hear_by)) {
      host.silent = true;
      host.closing = host.hear_by;
    }
    reap(host, listener);
    if (host.end || host.refusal) lose(host, listener);
  }
}

void RemoteRanks::read(Host& host, RankListener& listener) {
  host.err.read([&](const std::string& line) { keep_words(host.words, line, kWords); });
  host.out.read([&](const std::string& line) { on_line(host, line, listener); });
  if (!host.out.open() && !host.closing) host.closing = deadline_in(kEndPatience);
}

void RemoteRanks::reap(Host& host, RankListener& listener) {
  if (host.end) return;
  if (host.closing && has_passed(*host.closing)) {
    ::kill(-host.process.pid, SIGKILL);
    host.closing = deadline_in(kEndPatience);
  }
  siginfo_t info{};
  if (::waitid(P_PID, static_cast<id_t>(host.process.pid), &info, WEXITED | WNOHANG) != 0 || info.si_pid == 0)
    return;
  host.out.finish([&](const std::string& line) { on_line(host, line, listener); });
  host.err.finish([&](const std::string& line) { keep_words(host.words, line, kWords); });
  host.end = RankEnd{info.si_code != CLD_EXITED, info.si_status};
}

// Reports the running ranks of a lost host.
void RemoteRanks::lose(Host& host, RankListener& listener) {
  std::string why;
  if (host.refusal) {
    why = fmt::format("host {}: {}", host.name, host.refusal->second);
  } else if (host.silent) {
    why = fmt::format("host {} has not answered for {} s", host.name,
                      std::chrono::duration<double>(options_.hosts.silence).count());
  } else {
    why = fmt::format("the connection to host {} ended ({}){}", host.name, end_text(*host.end),
                      last_words(host.words));
  }
  {
    const std::scoped_lock lock(inputs_);
    host.in.reset();  // an agent that is still alive then ends its ranks
  }
  for (int r = host.first; r < host.first + host.count; ++r) {
    if (!running_[static_cast<size_t>(r)]) continue;
    running_[static_cast<size_t>(r)] = false;
    listener.on_lost(r, why);
  }
}

void RemoteRanks::on_line(Host& host, const std::string& line, RankListener& listener) {
  if (beat_.joinable()) host.hear_by = deadline_in(options_.hosts.silence);
  if (!host.hello) {
    host.hello = parse_hello(line);
    if (!host.hello) keep_words(host.words, line, kWords);
    return;
  }
  const HostLine parts = split_host_line(line);
  if (parts.word == "listening") {
    const auto port = split_number(parts.rest);
    host.port = port ? port->first : 0;
    host.listening = words_of_line(port ? port->second : std::string_view());
  } else if (parts.word == "reached") {
    host.reached = words_of_line(parts.rest);
  } else if (parts.word == "warn") {
    listener.on_warning(fmt::format("{}: {}", host.name, parts.rest));
  } else if (const auto number = split_number(parts.rest)) {
    if (parts.word == "refuse") {
      host.refusal = {error_code_of(number->first), std::string(number->second)};
    } else if (number->first >= host.first && number->first < host.first + host.count) {
      on_rank_line(parts, number->first, number->second, listener);
    }
  }
}

void RemoteRanks::on_rank_line(const HostLine& line, int rank, std::string_view rest,
                               RankListener& listener) {
  const std::string text(rest);
  if (line.word == "out") return listener.on_out(rank, text);
  if (line.word == "err") return listener.on_err(rank, text);
  if (line.word == "fault") return listener.on_fault_line(rank, text);
  const auto number = split_number(rest);
  if (!number) return;
  if (line.word == "step") steps_[static_cast<size_t>(rank)] = number->first;
  if (line.word != "exit" && line.word != "kill") return;
  running_[static_cast<size_t>(rank)] = false;
  listener.on_end(rank, {line.word == "kill", number->first});
}

std::string RemoteRanks::host_of(int rank) const {
  const auto at = std::find_if(hosts_.begin(), hosts_.end(),
                               [rank](const Host& host) { return rank < host.first + host.count; });
  return at == hosts_.end() ? std::string() : at->name;
}

void RemoteRanks::signal(int signal, bool whole_group) {
  for (Host& host : hosts_) {
    if (host.end || !host.in.valid()) continue;
    send(host, fmt::format("signal {} {}", signal, whole_group ? 1 : 0));
    if (signal == SIGCONT)
      host.hear_by = deadline_in(options_.hosts.silence);  // a stopped launcher sent no "alive"
    if (signal == SIGKILL && !host.closing)
      host.closing = deadline_in(options_.hosts.silence / kKillShare);  // the connection may be lost
  }
}

void RemoteRanks::end(int rank) {
  for (const Host& host : hosts_) {
    const bool owns = rank >= host.first && rank < host.first + host.count;
    if (owns && !host.end && host.in.valid()) send(host, fmt::format("end {}", rank));
  }
}

// Ignores errors: the end of the output shows that a connection was lost.
void RemoteRanks::send(const Host& host, const std::string& line) {
  FdOutput(host.in.get()).write(line + "\n");
}

}  // namespace starling
