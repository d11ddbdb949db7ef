// Ranks is the launcher's interface to the processes of a job. They run on this host (local_ranks.h) or on
// several hosts (remote_ranks.h).
#pragma once

#include <poll.h>

#include <cstdint>
#include <string>
#include <vector>

#include "starling/launch/fault.h"

namespace starling {

// How a process ended: with an exit status or by a signal.
struct RankEnd {
  bool signalled = false;
  int number = 0;
  // Returns the exit status, or 128 + signal, as in a shell.
  int status() const { return signalled ? 128 + number : number; }
};

// RankListener receives the output and the end of ranks. Lines have no newline.
class RankListener {
 public:
  virtual ~RankListener() = default;
  virtual void on_out(int rank, const std::string& line) = 0;
  virtual void on_err(int rank, const std::string& line) = 0;
  virtual void on_fault_line(int rank, const std::string& line) = 0;  // fault.h
  virtual void on_end(int rank, RankEnd end) = 0;  // called after all output of the rank; running() is false
  // The host of the rank was lost. The rank itself may still be running.
  virtual void on_lost(int rank, const std::string& why) = 0;
  virtual void on_warning(const std::string& text) = 0;
};

// All functions must be called by the thread that created the object. No rank outlives the object.
class Ranks {
 public:
  virtual ~Ranks() = default;

  // Starts all ranks. Throws ConfigError, CommError or Error (kInternal, kInterrupted), and then ends the
  // ranks that were started.
  virtual void start(RankListener& listener) = 0;
  // Appends the descriptors to poll.
  virtual void add_to(std::vector<pollfd>& fds) const = 0;
  // Returns the number of milliseconds after which take() must be called even if no descriptor is ready; -1:
  // never.
  virtual int patience() const { return -1; }
  // Passes new output and the ends of ranks to `listener`, without waiting.
  virtual void take(RankListener& listener) = 0;

  // Returns whether the rank has started and has not ended.
  virtual bool running(int rank) const = 0;
  // Returns the last step that the rank finished, 0 before its first step, and -1 before training. Values
  // below -1 are explained in step_board.h. Steps on other hosts become known with a delay.
  virtual int64_t step(int rank) const = 0;
  // Returns the name of the rank's host; empty for this host.
  virtual std::string host_of(int rank) const = 0;
  // Sends a signal to all running ranks: to the process, or to its whole process group.
  virtual void signal(int signal, bool whole_group) = 0;
  // Kills the process group of one rank.
  virtual void end(int rank) = 0;
};

}  // namespace starling
