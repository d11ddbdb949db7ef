// RowShard is a row table that several threads use: the conversations with workers, and the worker in whose
// process the shard is. One mutex guards the table, so requests are executed one after another.
//
// Threads: any thread may call every function. Errors: those of RowTable, and TimeoutError if a read could
// not be answered in time. The error names the slowest worker, and every later request gets that error.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>

#include "starling/net/deadline.h"
#include "starling/server/row_table.h"

namespace starling {

// T: int32_t, int64_t, float or double.
template <typename T>
class RowShard {
 public:
  // Errors: ConfigError for invalid options.
  explicit RowShard(const RowTableOptions& options) : table_(options) {}

  // Calls work(table), and then wakes the reads that wait for a change.
  template <typename Work>
  auto change(const Work& work) {
    struct Wake {
      std::condition_variable& changed;
      ~Wake() { changed.notify_all(); }
    };
    const std::lock_guard lock(mutex_);
    const Wake wake{changed_};
    return work(table_);
  }

  // Waits until the worker may read at its clock, and then calls work(table, staleness). timeout: how long to
  // wait for the slowest worker.
  template <typename Work>
  auto read(int worker, int64_t clock, std::chrono::milliseconds timeout, const Work& work) {
    const Deadline deadline = deadline_in(timeout);
    std::unique_lock lock(mutex_);
    while (!table_.may_read(worker, clock)) {
      if (changed_.wait_until(lock, deadline) == std::cv_status::timeout && has_passed(deadline))
        throw_late(worker, clock, timeout);
    }
    return work(table_, table_.note_read(worker));
  }

  // Returns the options.
  const RowTableOptions& options() const { return table_.options(); }

 private:
  [[noreturn]] void throw_late(int worker, int64_t clock, std::chrono::milliseconds timeout) {
    const int slowest = table_.slowest();
    const TimeoutError late(
        fmt::format("the row read of worker {} at clock {} waited {} ms for worker {}, which is still at "
                    "clock {}",
                    worker, clock, timeout.count(), slowest, table_.clock_of(slowest)),
        slowest);
    table_.spoil(late.code(), late.what(), slowest);
    changed_.notify_all();
    throw late;
  }

  RowTable<T> table_;  // guarded by mutex_
  std::mutex mutex_;
  std::condition_variable changed_;
};

}  // namespace starling
