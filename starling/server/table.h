// Table: a server shard's master copy of its partitions, and the rules by which workers read and update it. Pure logic:
// no threads, no clock, no messages; who may not go on yet is told so and asks again after a change.
//
// A worker counts its pushes: its clock c is the number of them, and its push at clock c makes it c + 1.
//
//   staleness 0 (synchronous):   the gradients of clock c of all workers are averaged and applied as one update, then reads
//     at clock c + 1 are answered. With b backup workers the first p - b gradients make the update; a worker whose gradient
//     came too late has it dropped and reads what there is (Chen et al., arXiv 1604.00981).
//   staleness s:                 every gradient is applied when it comes. A read at clock c is answered once every worker
//     has pushed at least c - s times: it sees all updates of clocks up to c - s - 1, and one's own (Ho et al., NIPS 2013).
//   unbounded (asynchronous):    every gradient is applied when it comes, every read is answered at once (Dean et al. 2012).
//
//   w ← U(w, g; lr λ_k / (1 + τ))    applied when it comes, from worker k; the divisor only with weight_by_staleness
//   w ← U(w, mean_k g_k; lr)         synchronous;  U = the update rule (optim/update_rule.h); the mean is over samples:
//                                    g_k counts n_k times where it is the mean gradient of n_k samples
//
// When a worker is lost the others go on. Synchronous: the open clock's mean is over the samples that have come (what the lost
// one has pushed counts), and every read of a later clock tells of the loss, the same to all; with redo_after_loss, unless the
// lost one had pushed, the open clock begins anew: what was pushed is put aside, and so is every push of a worker that has not
// been told, until its read of the next clock is answered with the open one. Otherwise: λ = 1/p counts the workers that are left.
//
// A worker may own some of the partitions only (a model divided over a group of ranks): it pushes and reads these, and a
// partition's mean is over the workers that pushed it. A worker that owns nothing here holds nobody up.
//
// Snapshots: a copy that all workers ask for after the same number of their pushes. It is given when all have asked, and
// nobody's push is taken in until all have been served, so that all get the same.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "starling/optim/update_rule.h"
#include "starling/server/options.h"
#include "starling/server/table_stats.h"

namespace starling {

struct PushNotes {
  double lr = 0;
  double loss = 0;      // of the worker's samples
  bool stop = false;    // the worker wishes the run to end
  int64_t samples = 1;  // n_k
};

enum class PushOutcome { kApplied, kHeld, kDropped };

// What comes with parameters.
struct ReadGrant {
  // The clock that the worker is at: updates made when synchronous, else its own pushes. Below the clock that was asked for:
  // that clock's update was not made, the worker pushes for it again (redo_after_loss).
  int64_t clock = 0;
  int64_t staleness = 0;  // clocks by which the slowest worker is behind the reader
  double loss = 0;        // mean over the workers, of their last pushes
  bool stop = false;      // some worker wished the run to end; after the same clock for all when synchronous
  int lost = 0;  // the first so many of TableStats::lost; the same for all at a clock when synchronous
};

// T: float or double. Not thread-safe. Errors: CommError for what a worker must not ask (a clock that is not its turn).
template <typename T>
class Table {
 public:
  // sizes: elements of each of the shard's partitions ("slots"), which lie one after another.
  Table(std::vector<size_t> sizes, const ServerOptions& options);

  // The worker takes part; slots: the partitions that it owns, ascending. Until then it counts as one that has not pushed.
  void join(int worker, std::vector<size_t> slots);
  // Its clock is taken out, so that others go on. From a worker that is lost, or has said goodbye.
  void retire(int worker, bool lost);

  // Sets the worker's slots: parameters, then the states one after another (none: zeros). updates: how many made them.
  void load(int worker, int64_t updates, std::span<const T> values);

  // False while a snapshot is being taken that this worker has already.
  bool may_push(int worker) const;
  // gradient: the worker's slots, one after another; it is exchanged for another buffer of the same size.
  PushOutcome push(int worker, int64_t clock, const PushNotes& notes, std::vector<T>& gradient);

  // Copies the worker's slots to `out` and tells what they are; nothing while it must wait. min_loads: how many load()
  // of each slot it wants to have seen.
  std::optional<ReadGrant> try_read(int worker, int64_t clock, int64_t min_loads, std::vector<T>& out);

  void request_snapshot(int worker);
  // parameters: the worker's slots; whole: the whole shard, parameters and then the states. Nothing while it must wait.
  enum class Want { kNothing, kOwn, kWhole };
  std::optional<ReadGrant> try_snapshot(int worker, Want want, std::vector<T>& out);

  size_t count_of(int worker) const { return workers_[worker].count; }
  size_t count() const { return master_.size(); }
  int state_count() const { return rule_.state_count(); }
  int64_t updates() const;  // of the slot that has most
  bool present(int worker) const { return workers_[worker].phase != Phase::kRetired; }
  const std::vector<T>& parameters() const { return master_; }
  const TableStats& stats() const { return stats_; }
  const std::vector<TableEvent>& events() const { return events_; }

 private:
  enum class Phase { kExpected, kActive, kRetired };
  struct Worker {
    Phase phase = Phase::kExpected;
    std::vector<size_t> slots;
    size_t count = 0;
    int64_t clock = 0;
    int64_t seen = 0;               // changes_ at the last read
    int told = 0;                   // losses that it told of
    int64_t asked = 0, served = 0;  // snapshots
    bool holds = false;             // `gradient` waits for its clock to be complete
    std::vector<T> gradient;
    PushNotes notes;
  };

  // Whose clock counts: active with slots, or still expected.
  bool counts(const Worker& w) const;
  int64_t slowest_clock() const;
  void check_clock(int worker, int64_t clock, int64_t expected, const char* what) const;
  PushOutcome hold(int worker, int64_t clock, std::vector<T>& gradient);
  bool must_redo(const Worker& w) const { return options_.redo_after_loss && w.told < told_of_; }
  void break_off();
  void apply_now(int worker, const std::vector<T>& gradient);
  void close_round_if_complete();
  void apply_round();
  void apply_to(size_t slot, std::span<const T* const> gradients, double scale, double lr);
  ReadGrant grant_to(int worker, int64_t clock);
  void copy_own(int worker, std::vector<T>& out) const;
  double mean_loss() const;
  void record(TableAction action, int worker, int64_t clock, int64_t value = 0);

  const ServerOptions options_;
  const UpdateRule rule_;
  const std::vector<size_t> sizes_;
  std::vector<size_t> offset_;  // of each slot
  std::vector<T> master_;
  std::vector<std::vector<T>> states_;
  std::vector<int64_t> steps_;  // updates of each slot: t of Adam
  std::vector<int64_t> loads_;  // of each slot
  std::vector<Worker> workers_;
  int64_t clock_ = 0;           // synchronous: updates made
  int64_t changes_ = 0;         // pushes applied
  std::vector<T> sum_;          // synchronous, in order of arrival: gradients of the open clock
  std::vector<double> summed_;  // by slot: samples in sum_, in units of sum_unit_
  int64_t sum_unit_ = 1;        // samples of the open clock's first gradient
  double round_loss_ = 0;
  int told_of_ =
      0;  // losses that reads tell of: those when the last clock was closed, or the open one broken off
  std::optional<int64_t> stop_after_;
  TableStats stats_;
  std::vector<TableEvent> events_;
};

}  // namespace starling
