// LeaseTable: which mini-batch of a job belongs to which worker, where ranks do not march in step. A batch is a ticket: number
// t = 0, 1, 2 … is batch t mod n of epoch t / n, n being the batches of an epoch, so that the samples of a ticket are known to
// whoever knows the order (data/loader.h, sample_at). Every ticket is settled by exactly one worker: it is given out once, and
// again only when the worker that held it is gone or has been silent for too long, from which moment that worker's word on it
// counts no more. Pure logic, torch-free; not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <set>

#include "starling/base/clock.h"

namespace starling {

struct LeaseCounts {
  int64_t given = 0;        // tickets given out, those given again included
  int64_t settled = 0;      // done by the worker that held them
  int64_t given_again = 0;  // taken from a worker that was lost or silent, and given to another
  int64_t late = 0;         // settled by a worker that had lost them meanwhile: done twice
};

class LeaseTable {
 public:
  // first: the ticket to begin with. A worker that asks for nothing and settles nothing for `patience` loses what it holds.
  LeaseTable(int64_t first, Nanoseconds patience) : first_(first), fresh_(first), patience_(patience) {}

  // The next ticket: the lowest of those that were lost, else a fresh one. Never waits, never ends.
  int64_t lease(int64_t worker, Nanoseconds now);
  // The worker has used the ticket. False where it does not hold it (any more).
  bool settle(int64_t worker, int64_t ticket, Nanoseconds now);
  // The worker is gone: what it held goes to others. Returns how many tickets that is.
  int64_t release(int64_t worker);

  int64_t first() const { return first_; }
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
