// LocalRanks: ranks as child processes of this one.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "starling/launch/launch_options.h"
#include "starling/launch/line_reader.h"
#include "starling/launch/rank_process.h"
#include "starling/launch/ranks.h"
#include "starling/launch/step_board.h"

namespace starling {

// A TCP port of this host that is free now, for MASTER_PORT: nothing of ours listens there, other programs' rank 0 may.
int free_port();

// Of a job's ranks, options.ranks from options.share.first on. Numbers in the interface are those of the job.
class LocalRanks final : public Ranks {
 public:
  // mask: of the children's signals. Both must outlive it. direct: rank 0 has this process's standard output, and its standard
  // error where that is a terminal.
  LocalRanks(const LaunchOptions& options, const sigset_t& mask, bool direct);
  // Kills and reaps those that run.
  ~LocalRanks() override;

  void start(RankListener& listener) override;
  void add_to(std::vector<pollfd>& fds) const override;
  void take(RankListener& listener) override;
  bool running(int rank) const override;
  int64_t step(int rank) const override { return board_.get(rank); }
  std::string host_of(int) const override { return {}; }
  void signal(int signal, bool whole_group) override;

 private:
  struct Child {
    RankProcess process;
    LineReader out, err, errors;
    bool running = false;
  };
  void start_one(int index, const std::string& program, int threads, int master_port,
                 const std::vector<int>& cpus);
  void read(int index, bool last, RankListener& listener);
  void reap(int index, RankListener& listener);

  const LaunchOptions& options_;
  const sigset_t mask_;
  const bool direct_;
  Rendezvous rendezvous_;
  StepBoard board_;
  std::deque<Child> children_;
};

}  // namespace starling
