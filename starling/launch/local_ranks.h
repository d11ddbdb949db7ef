// LocalRanks runs ranks as child processes.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <vector>

#include "starling/base/clock.h"
#include "starling/launch/launch_options.h"
#include "starling/launch/line_reader.h"
#include "starling/launch/orphans.h"
#include "starling/launch/rank_process.h"
#include "starling/launch/ranks.h"
#include "starling/launch/step_board.h"

namespace starling {

// Returns a free TCP port of this host for MASTER_PORT, or 29500 if the system gives none. Starling does not
// listen on it, but rank 0 of another program may.
int free_port();

// Runs options.ranks ranks of a job, starting with options.share.first. All functions use the numbers of
// ranks in the job.
class LocalRanks final : public Ranks {
 public:
  // `mask` is the signal mask of the ranks. `options` must outlive this object. If `direct` is true, rank 0
  // shares the standard output of this process, and the standard error if that is a terminal. Errors: those
  // of options.rendezvous().
  LocalRanks(const LaunchOptions& options, const sigset_t& mask, bool direct);
  // Kills and reaps the ranks that still run, and ends the processes that ranks have left behind (orphans.h).
  ~LocalRanks() override;

  void start(RankListener& listener) override;
  void add_to(std::vector<pollfd>& fds) const override;
  void take(RankListener& listener) override;
  bool running(int rank) const override;
  int64_t step(int rank) const override { return board_.get(rank); }
  std::string host_of(int) const override { return {}; }
  int patience() const override;
  // A rank that does not handle SIGUSR1 or SIGUSR2 yet, because it is starting, gets the signal once it does.
  // If that takes longer than 60 s, the signal is dropped with a warning.
  void signal(int signal, bool whole_group) override;
  void end(int rank) override;

 private:
  struct Child {
    RankProcess process;
    LineReader out, err, errors;
    bool running = false;
    std::map<int, Nanoseconds> held = {};  // signals that would end the process now, and until when
  };
  void start_one(int index, const std::string& program, const RankThreads& threads, int master_port,
                 const std::vector<int>& cpus);
  void send_held(int index, RankListener& listener);
  void read(int index, bool last, RankListener& listener);
  void reap(int index, RankListener& listener);

  const Orphans orphans_;
  const LaunchOptions& options_;
  const sigset_t mask_;
  const bool direct_;
  const SystemClock clock_;
  Rendezvous rendezvous_;
  StepBoard board_;
  std::deque<Child> children_;
};

}  // namespace starling
