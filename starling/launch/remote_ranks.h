// RemoteRanks runs the ranks of a job on several hosts. A command such as ssh reaches each host and runs an
// agent there (host_agent.h). The agent on the launcher's own host is started without that command.
//
// start() takes these steps:
//
//   1. All agents answer. They must have one version, and no host may occur twice.
//   2. Each agent gets its job and the key.
//   3. The agent of the first host listens. The other agents report which of its addresses they reach.
//   4. The first address that all agents reach becomes the address of the rendezvous, and the ranks start.
#pragma once

#include <signal.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "starling/launch/host_lines.h"
#include "starling/launch/launch_options.h"
#include "starling/launch/line_reader.h"
#include "starling/launch/rank_process.h"
#include "starling/launch/ranks.h"
#include "starling/launch/signal_watch.h"
#include "starling/net/deadline.h"

namespace starling {

// The ranks on all hosts of HostsOptions. A thread of its own sends the agents a sign of life.
class RemoteRanks final : public Ranks {
 public:
  // If SIGINT, SIGTERM or SIGHUP comes during start(), it throws Error(kInterrupted). The child processes get
  // the signal mask from before `signals`. `options` and `signals` must outlive this object.
  RemoteRanks(const LaunchOptions& options, SignalWatch& signals);
  ~RemoteRanks() override;

  void start(RankListener& listener) override;
  void add_to(std::vector<pollfd>& fds) const override;
  int patience() const override;
  void take(RankListener& listener) override;
  bool running(int rank) const override { return running_[static_cast<size_t>(rank)]; }
  int64_t step(int rank) const override { return steps_[static_cast<size_t>(rank)]; }
  std::string host_of(int rank) const override;
  void signal(int signal, bool whole_group) override;
  void end(int rank) override;

 private:
  struct Host {
    std::string name;
    int first = 0, count = 0;
    RankProcess process;  // the command that reaches the host
    UniqueFd in;
    LineReader out, err;
    std::optional<HostHello> hello;
    int port = 0;  // a free port of the host, for MASTER_PORT
    std::optional<std::vector<std::string>> listening, reached;
    std::optional<std::pair<ErrorCode, std::string>> refusal;
    std::deque<std::string> words;  // the last lines that do not belong to the protocol
    Deadline hear_by{};             // a host that sends nothing until then is lost
    bool silent = false;            // the deadline has passed
    std::optional<RankEnd> end;
    std::optional<Deadline>
        closing;  // when its process must have ended, after the end of its output or a SIGKILL for its ranks
  };
  using Test = std::function<bool(const Host&)>;

  void connect(Host& host);
  void await(const Test& done, const std::string& for_what, RankListener& listener);
  void read(Host& host, RankListener& listener);
  void on_line(Host& host, const std::string& line, RankListener& listener);
  void on_rank_line(const HostLine& line, int rank, std::string_view rest, RankListener& listener);
  void reap(Host& host, RankListener& listener);
  void lose(Host& host, RankListener& listener);
  void check_hosts() const;
  HostJob job_for(const Host& host, const JobIdentity& identity) const;
  std::string rendezvous_address(RankListener& listener);
  void beat(const std::stop_token& stop);
  void send(const Host& host, const std::string& line);
  [[noreturn]] void give_up_on(const Host& host) const;

  const LaunchOptions& options_;
  const sigset_t mask_;
  SignalWatch& signals_;
  const std::string program_;  // path of the program on the other hosts
  const std::string folder_;   // folder in which the launcher was started
  Deadline answer_by_{};
  std::deque<Host> hosts_;
  std::vector<bool> running_;  // indexed by rank
  std::vector<int64_t> steps_;
  std::mutex inputs_;  // protects Host::in, which only the owner's thread changes
  std::condition_variable_any next_beat_;
  std::jthread beat_;
};

}  // namespace starling
