#include "starling/launch/host_agent.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <thread>

#include "starling/base/error.h"
#include "starling/launch/host_lines.h"
#include "starling/launch/launch_rendezvous.h"
#include "starling/launch/local_ranks.h"
#include "starling/launch/remote_command.h"
#include "starling/launch/signal_watch.h"
#include "starling/launch/version.h"
#include "starling/net/address.h"
#include "starling/net/deadline.h"
#include "starling/net/store/store_client.h"
#include "starling/net/store/store_server.h"
#include "starling/telemetry/output.h"

namespace starling {
namespace {

constexpr auto kStartPatience =
    std::chrono::minutes(5);    // longest wait for the launcher's permission to start the ranks
constexpr size_t kPart = 4096;  // a pipe or socket that is ready for writing accepts this many bytes

// Returns the addresses at which other hosts may reach this host, IPv4 first.
std::vector<std::string> candidates(const std::string& wanted) {
  std::vector<std::string> four, six;
  bool known = wanted.empty();
  for (const Interface& interface : list_interfaces()) {
    const SocketAddress& address = interface.address;
    const bool named = interface.name == wanted || address.host() == wanted;
    known = known || named;
    if (wanted.empty() ? interface.loopback || address.host().starts_with("fe80:") : !named) continue;
    (address.family() == AF_INET ? four : six).push_back(address.text());
  }
  if (!known)
    throw ConfigError("comm.interface",
                      fmt::format("{} is not an interface or an address of this host", wanted));
  four.insert(four.end(), six.begin(), six.end());
  return four;
}

class HostAgent final : private RankListener {
 public:
  explicit HostAgent(const char* const* environment) : environment_(environment) {}
  int run();

 private:
  void on_out(int rank, const std::string& line) override { say("out {} {}", rank, line); }
  void on_err(int rank, const std::string& line) override { say("err {} {}", rank, line); }
  void on_fault_line(int rank, const std::string& line) override { say("fault {} {}", rank, line); }
  void on_end(int rank, RankEnd end) override;
  void on_lost(int, const std::string&) override {}
  void on_warning(const std::string& text) override { say("warn {}", text); }

  template <typename... Values>
  void say(fmt::format_string<Values...> format, Values&&... values) {
    put(fmt::format(format, std::forward<Values>(values)...));
  }
  void put(std::string line);
  void turn();
  void hear();
  void on_line(const std::string& line);
  void on_signal(int signal, bool whole_group);
  void on_job(std::string_view rest);
  void make_environment();
  void listen();
  void reach(const std::vector<std::string>& addresses);
  void go(int port, const std::string& address);
  void show_steps();
  bool over() const;

  const char* const* environment_;
  SignalWatch signals_;
  FdOutput output_{STDOUT_FILENO};
  LineReader input_{UniqueFd(::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 10)), kLongestHostLine};
  std::deque<std::string> inbox_;
  bool heard_ = true;  // the launcher is alive
  Deadline hear_by_ = deadline_in(kStartPatience);
  bool stopped_ = false;  // Ctrl-Z stopped the launcher and the ranks
  std::optional<HostJob> job_;
  std::unique_ptr<JobIdentity> identity_;
  std::map<std::string, std::unique_ptr<StoreServer>> servers_;  // stores of the job, by address
  std::vector<std::string> words_;                               // NAME=VALUE of the ranks' environment
  std::vector<const char*> variables_;
  LaunchOptions options_;
  std::unique_ptr<LocalRanks> ranks_;
  std::map<int, int64_t> shown_;  // rank → the last step that was reported
};

int HostAgent::run() {
  say("{}", to_line(HostHello{kHostProtocol, program_version(), host_id(), host_name()}));
  try {
    while (heard_) turn();  // even if all its ranks have ended: ranks of other hosts may use its store
  } catch (const Error& error) {
    say("refuse {} {}", static_cast<int>(error.code()), error.what());
    return 1;
  }
  return over() ? 0 : 1;
}

bool HostAgent::over() const {
  if (!ranks_) return false;
  for (int r = 0; r < job_->ranks; ++r) {
    if (ranks_->running(job_->first + r)) return false;
  }
  return true;
}

// Waits until the connection accepts the line, as long as the launcher is alive. The launcher may be waiting
// for a terminal that the user stopped with Ctrl-S.
void HostAgent::put(std::string line) {
  std::replace(line.begin(), line.end(), '\n', ' ');
  line += '\n';
  std::string_view left = line;
  while (heard_ && !left.empty()) {
    pollfd fds[] = {{STDOUT_FILENO, POLLOUT, 0}, {input_.fd(), POLLIN, 0}};
    ::poll(fds, 2, stopped_ ? -1 : poll_timeout(hear_by_));
    if (fds[0].revents == 0) {
      hear();
    } else {
      const std::string_view part = left.substr(0, kPart);
      if (!output_.write(part)) heard_ = false;
      left.remove_prefix(part.size());
    }
  }
}

// Handles requests that need no answer at once. Other requests go to the inbox, which turn() empties, because
// put() may call hear() in the middle of a line.
void HostAgent::hear() {
  input_.read([this](const std::string& line) {
    if (ranks_) hear_by_ = deadline_in(std::chrono::milliseconds(job_->silence_ms));
    const HostLine parts = split_host_line(line);
    if (ranks_ && parts.word == "signal") {
      if (const auto number = split_number(parts.rest)) on_signal(number->first, number->second == "1");
    } else if (ranks_ && parts.word == "end") {
      if (const auto number = split_number(parts.rest)) ranks_->end(number->first);
    } else {
      inbox_.push_back(line);
    }
  });
  if (!input_.open() || (!stopped_ && has_passed(hear_by_))) heard_ = false;
}

void HostAgent::turn() {
  std::vector<pollfd> fds{{input_.fd(), POLLIN, 0}, {signals_.fd(), POLLIN, 0}};
  if (ranks_) ranks_->add_to(fds);
  // The step board is the only sign that a rank has started to train. Other programs have no steps.
  const bool look =
      ranks_ && job_->program.empty() && !over() && static_cast<int>(shown_.size()) < job_->ranks;
  int patience = stopped_ ? -1 : poll_timeout(hear_by_);
  if (const int theirs = ranks_ ? ranks_->patience() : -1; theirs >= 0)
    patience = patience < 0 ? theirs : std::min(patience, theirs);
  ::poll(fds.data(), fds.size(), !inbox_.empty() ? 0 : look ? 20 : patience);
  hear();
  for (; heard_ && !inbox_.empty(); inbox_.pop_front()) on_line(inbox_.front());
  while (const std::optional<int> signal = signals_.take()) {
    if (*signal == SIGTSTP) continue;
    if (ranks_) {
      ranks_->signal(SIGTERM, false);
    } else {
      heard_ = false;  // no rank was started, so nothing has to end
    }
  }
  if (!ranks_ || !heard_) return;
  show_steps();
  ranks_->take(*this);
}

// Reports to the launcher which ranks have started to train, and the last step of ranks that ended.
void HostAgent::show_steps() {
  for (int r = job_->first; r < job_->first + job_->ranks; ++r) {
    const int64_t step = ranks_->step(r);
    if (step < 0 || shown_.contains(r)) continue;
    shown_[r] = step;
    say("step {} {}", r, step);
  }
}

void HostAgent::on_end(int rank, RankEnd end) {
  if (const int64_t step = ranks_->step(rank); step >= 0) say("step {} {}", rank, step);
  say("{} {} {}", end.signalled ? "kill" : "exit", rank, end.number);
}

void HostAgent::on_line(const std::string& line) {
  const HostLine parts = split_host_line(line);
  if (parts.word == "alive") {
    say("alive");
  } else if (parts.word == "job") {
    on_job(parts.rest);
  } else if (parts.word == "reach" && job_) {
    reach(words_of_line(parts.rest));
  } else if (parts.word == "go" && job_ && !ranks_) {
    if (const auto port = split_number(parts.rest)) go(port->first, std::string(port->second));
  } else if (parts.word == "signal" && ranks_) {
    if (const auto number = split_number(parts.rest)) on_signal(number->first, number->second == "1");
  }
}

void HostAgent::on_signal(int signal, bool whole_group) {
  if (signal == SIGSTOP) stopped_ = true;
  if (signal == SIGCONT) stopped_ = false;
  ranks_->signal(signal, whole_group);
}

void HostAgent::on_job(std::string_view rest) {
  job_ = parse_job(rest);
  identity_ = std::make_unique<JobIdentity>(
      JobIdentity{job_->key, job_->job_id, job_->security, std::chrono::milliseconds(job_->dead_after_ms)});
  if (::chdir(job_->folder.c_str()) != 0) {
    throw ConfigError("", fmt::format("the run was started in the folder {}, which cannot be entered on this "
                                      "host: {}. Start the run in a folder that all hosts have",
                                      job_->folder, std::strerror(errno)));
  }
  make_environment();
  if (!job_->program.empty()) options_.program = program_to_start(job_->program, words_);
  listen();
}

// Listens at every usable address. Called on the first host only.
void HostAgent::listen() {
  std::string listening = std::to_string(free_port());
  const std::vector<std::string> none;
  for (const std::string& candidate : job_->listens ? candidates(job_->interface) : none) {
    try {
      auto server = std::make_unique<StoreServer>(std::vector<std::string>{candidate}, *identity_);
      const std::string address = server->addresses().front();
      servers_.emplace(address, std::move(server));
      listening += " " + address;
    } catch (const CommError&) {  // the address was removed; other addresses remain
    }
  }
  say("listening {}", listening);
}

// Tries all addresses concurrently, because addresses of virtual networks do not answer.
void HostAgent::reach(const std::vector<std::string>& addresses) {
  StoreClientOptions options;
  options.connect_timeout = options.answer_timeout = std::chrono::milliseconds(job_->reach_ms);
  std::vector<char> answers(addresses.size());
  {
    std::vector<std::jthread> tries;
    tries.reserve(addresses.size());
    for (size_t i = 0; i < addresses.size(); ++i) {
      tries.emplace_back([&, i] {
        try {
          StoreClient(addresses[i], *identity_, options).try_get("hello");
          answers[i] = 1;
        } catch (const Error&) {  // the address cannot be reached
        }
      });
    }
  }
  std::string reached;
  for (size_t i = 0; i < addresses.size(); ++i) {
    if (answers[i] != 0) reached += " " + addresses[i];
  }
  say("reached{}", reached);
}

// Combines the environment of this host with the variables that the launcher sent. The launcher's variables
// win.
void HostAgent::make_environment() {
  for (const char* const* entry = environment_; entry && *entry; ++entry) words_.emplace_back(*entry);
  for (const std::string& entry : job_->environment) {
    const std::string name = entry.substr(0, entry.find('=') + 1);
    std::erase_if(words_, [&](const std::string& other) { return other.starts_with(name); });
    words_.push_back(entry);
  }
  for (const std::string& word : words_) variables_.push_back(word.c_str());
  variables_.push_back(nullptr);
}

void HostAgent::go(int port, const std::string& address) {
  std::erase_if(servers_, [&](const auto& server) { return server.first != address; });
  options_.environment = variables_.data();
  options_.ranks = job_->ranks;
  options_.threads = job_->threads;
  options_.pin = job_->pin;
  options_.argv = job_->argv;
  options_.run_dir = job_->run_dir;
  options_.share = {job_->first, job_->world, "127.0.0.1", port, address};
  if (!address.empty()) options_.share.master_host = parse_host_port(address).host;
  options_.rendezvous = [this] { return start_host_rendezvous(*identity_); };
  ranks_ = std::make_unique<LocalRanks>(options_, signals_.mask_before(), /*direct=*/false);
  ranks_->start(*this);
  hear_by_ = deadline_in(std::chrono::milliseconds(job_->silence_ms));
}

}  // namespace

bool is_host_agent(int argc, const char* const* argv) {
  return argc == 2 && argv[1] == kHostAgentArgument;
}

int run_host_agent(const char* const* environment) {
  return HostAgent(environment).run();
}

}  // namespace starling
