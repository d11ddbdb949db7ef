// RemoteRanks: the ranks of a job on several hosts, each reached by a command such as ssh, which runs an agent there
// (host_agent.h). The launcher's own host among them gets its agent without that command.
//
//   start: all agents answer ─► same version, no host twice ─► each gets its job and the key ─► the first host listens, the
//   others say which of its addresses they reach ─► the first that all reach is where the ranks meet ─► go
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
#include "starling/net/deadline.h"

namespace starling {

class RemoteRanks final : public Ranks {
 public:
  // mask: of the children's signals. interrupt: a descriptor; when it is readable start() gives up with Error(kInterrupted).
  // options must outlive it.
  RemoteRanks(const LaunchOptions& options, const sigset_t& mask, int interrupt);
  ~RemoteRanks() override;

  void start(RankListener& listener) override;
  void add_to(std::vector<pollfd>& fds) const override;
  int patience() const override;
  void take(RankListener& listener) override;
  bool running(int rank) const override { return running_[static_cast<size_t>(rank)]; }
  int64_t step(int rank) const override { return steps_[static_cast<size_t>(rank)]; }
  std::string host_of(int rank) const override;
  void signal(int signal, bool whole_group) override;

 private:
  struct Host {
    std::string name;
    int first = 0, count = 0;
    RankProcess process;  // what reaches it
    UniqueFd in;
    LineReader out, err;
    std::optional<HostHello> hello;
    int port = 0;  // that is free there, for MASTER_PORT
    std::optional<std::vector<std::string>> listening, reached;
    std::optional<std::pair<ErrorCode, std::string>> refusal;
    std::deque<std::string> words;  // what it said beside the protocol, the last lines
    Deadline hear_by{};             // it says something, were it only that it is alive, or is lost
    bool silent = false;            // that has passed
    std::optional<RankEnd> end;
    std::optional<Deadline>
        closing;  // until when its process may run: its output has ended, or its ranks were killed
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
  std::string meeting_address(RankListener& listener);
  void beat(const std::stop_token& stop);
  void send(const Host& host, const std::string& line);
  [[noreturn]] void give_up_on(const Host& host) const;

  const LaunchOptions& options_;
  const sigset_t mask_;
  const int interrupt_;
  const std::string program_;  // on the other hosts
  const std::string folder_;   // where we were started
  Deadline answer_by_{};
  std::deque<Host> hosts_;
  std::vector<bool> running_;  // by rank
  std::vector<int64_t> steps_;
  std::mutex inputs_;  // Host::in: this thread alone changes it
  std::condition_variable_any next_beat_;
  std::jthread beat_;
};

}  // namespace starling
