// Ranks: the processes of a job as the launcher sees them, on this host (local_ranks.h) or on several (remote_ranks.h).
#pragma once

#include <poll.h>

#include <cstdint>
#include <string>
#include <vector>

#include "starling/launch/fault.h"

namespace starling {

// How a process ended: by itself with a status, or by a signal.
struct RankEnd {
  bool signalled = false;
  int number = 0;
  // As a shell gives it.
  int status() const { return signalled ? 128 + number : number; }
};

// What ranks do. Lines come without their newline.
class RankListener {
 public:
  virtual ~RankListener() = default;
  virtual void on_out(int rank, const std::string& line) = 0;
  virtual void on_err(int rank, const std::string& line) = 0;
  virtual void on_fault_line(int rank, const std::string& line) = 0;  // fault.h
  virtual void on_end(int rank, RankEnd end) = 0;  // after everything that it wrote; running() is false
  // It runs no more, or nobody knows whether it does, by no fault of its own: its host is gone.
  virtual void on_lost(int rank, const std::string& why) = 0;
  virtual void on_warning(const std::string& text) = 0;
};

// Used by one thread, the one that made it. No rank survives it.
class Ranks {
 public:
  virtual ~Ranks() = default;

  // Starts them all; those that run already are ended where it throws: ConfigError, CommError, Error(kInternal).
  virtual void start(RankListener& listener) = 0;
  // What to poll for.
  virtual void add_to(std::vector<pollfd>& fds) const = 0;
  // Milliseconds after which take() has something to do although nothing was polled; -1: never.
  virtual int patience() const { return -1; }
  // Hands on all that has happened.
  virtual void take(RankListener& listener) = 0;

  virtual bool running(int rank) const = 0;
  // The last step that it finished, 0 when it is about to make its first, -1 before. Of another host known with delay.
  virtual int64_t step(int rank) const = 0;
  // The host that it was started on, "" for this one.
  virtual std::string host_of(int rank) const = 0;
  // To all that run: the process, or everything in its process group.
  virtual void signal(int signal, bool whole_group) = 0;
};

}  // namespace starling
