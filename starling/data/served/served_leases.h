// LeaseTable decides which worker of a job trains on which mini-batch, for ranks that do not step together. A
// batch is a ticket. An epoch has n batches. Ticket t = 0, 1, 2 … is batch t mod n of epoch t / n. Everyone
// who knows the order (data/loader.h, sample_at) knows the samples of a ticket.
//
// Exactly one worker settles each ticket. A ticket is given out again only if the worker that held it is gone
// or has been silent for too long. From then on, that worker can no longer settle it. The table is pure logic
// without torch. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <set>

#include "starling/base/clock.h"

namespace starling {

// Counts of tickets.
struct LeaseCounts {
  int64_t given = 0;        // tickets given out, including those given out again
  int64_t settled = 0;      // settled by the worker that held them
  int64_t given_again = 0;  // taken from a lost or silent worker and given out again
  int64_t late = 0;         // settled too late by a worker that had lost them: trained on twice
};

// The tickets of one job.
class LeaseTable {
 public:
  // `first` is the job's first ticket. A worker that neither asks nor settles for longer than `patience`
  // loses its tickets when another worker asks.
  LeaseTable(int64_t first, Nanoseconds patience) : first_(first), fresh_(first), patience_(patience) {}

  // Returns a ticket for the worker: the lowest of those that were lost, otherwise a fresh one. Never waits
  // and never runs out.
  int64_t lease(int64_t worker, Nanoseconds now);
  // Records that the worker has used the ticket. Returns false if the worker does not hold it (any more).
  bool settle(int64_t worker, int64_t ticket, Nanoseconds now);
  // Records that the worker is gone: its tickets go to other workers. Returns how many tickets it held.
  int64_t release(int64_t worker);

  // The job's first ticket.
  int64_t first() const { return first_; }
  // The counts so far.
  const LeaseCounts& counts() const { return counts_; }

 private:
  struct Worker {
    Nanoseconds last_sign{};
    std::set<int64_t> held;
  };
  void expire(int64_t asking, Nanoseconds now);

  int64_t first_;
  int64_t fresh_;
  Nanoseconds patience_;
  std::map<int64_t, Worker> workers_;
  std::set<int64_t> returned_;
  LeaseCounts counts_;
};

}  // namespace starling
