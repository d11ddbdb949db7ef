// ServerTable holds one server shard's copy of the parameters and decides when a worker may read or update
// them.
//
// The table is pure logic: it has no threads, no clock and no messages. A call that cannot be served yet
// returns nothing, and the caller repeats it after the next change.
//
// A worker clock c is the number of pushes that the worker has made. A push at clock c advances it to c + 1.
//
// Staleness 0 (synchronous): the gradients of clock c of all workers are averaged and applied as one update.
// Reads at clock c + 1 are answered afterwards. With b backup workers the first p - b gradients make the
// update. A gradient that arrives later is dropped, and its worker reads the current parameters (Chen et al.,
// arXiv 1604.00981).
//
// Staleness s: every gradient is applied when it arrives. A read at clock c is answered once every worker has
// pushed at least c - s times. The reader sees all updates of clocks up to c - s - 1 and its own (Ho et al.,
// NIPS 2013).
//
// Unbounded (asynchronous): every gradient is applied when it arrives, and every read is answered at once
// (Dean et al. 2012).
//
//   not synchronous:  w ← U(w, g; lr λ_k / (1 + τ))    for each g of worker k; 1 + τ: weight_by_staleness
//   synchronous:      w ← U(w, mean_k g_k; lr)
//
// τ of a partition is the number of updates that other workers have made to it since worker k read it.
// Source: Zhang et al., "Staleness-aware Async-SGD", IJCAI 2016.
//
// U is the update rule (optim/update_rule.h). The mean is over samples: g_k counts n_k times if it is the
// mean gradient of n_k samples. For a weighted loss, n_k is the weight of worker k's samples.
//
// Loss of a worker: the remaining workers continue. If synchronous, the mean of the open clock is over the
// samples that have arrived, those of the lost worker included. Every read of a later clock reports the loss,
// equally to all workers. With redo_after_loss, unless the lost worker had pushed, the open clock begins
// again: the gradients of the open clock are discarded. Every push of a worker that has not been told of the
// loss is discarded, too.
// A worker is told when its read of the next clock is answered with the open clock. If not synchronous, p in
// λ = 1/p is the number of workers that are not lost.
//
// Warm start: if asynchronous, one replica may begin alone (ServerOptions::warm_updates). The reads of all
// other workers wait until the partitions have so many updates. They do not wait if every worker of that
// replica has left or is lost. They also do not wait while a worker waits to meet them at a stop or a
// snapshot.
//
// Partial ownership: a worker may own only some of the partitions if a model is sharded over a group of
// ranks. It pushes and reads its own ones. The mean of a partition is over the workers that pushed it. No
// read waits for a worker that owns nothing.
//
// Snapshots: a snapshot is a copy that all workers request after an equal number of their pushes. The table
// gives the snapshot when all have requested it. A worker that has received it must not push before the
// remaining workers have received it, so that all receive equal values.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "starling/optim/update_rule.h"
#include "starling/server/server_options.h"
#include "starling/server/server_table_stats.h"

namespace starling {

// What a worker tells with a gradient.
struct PushNotes {
  double lr = 0;      // learning rate
  double loss = 0;    // of the worker's samples
  bool stop = false;  // the worker asks all workers to meet, because the run shall end or be saved
  double weight = 1;  // n_k
};

// What became of a push: applied at once, held until its clock is complete, or dropped.
enum class PushOutcome { kApplied, kHeld, kDropped };

// What a worker is told with parameters.
struct ReadGrant {
  // The clock of the worker: if synchronous, the number of updates made, otherwise the number of its pushes.
  // If it is below the clock of the read, the update of that clock was not made. The worker must then push
  // for it again (redo_after_loss).
  int64_t clock = 0;
  int64_t staleness = 0;  // clocks by which the slowest worker is behind the reader
  // The mean of the losses. If synchronous, it is over the samples of the last update. Otherwise it is over
  // the workers' last pushes.
  double loss = 0;
  // True if some worker asked all workers to meet. If synchronous, all workers are told by their reads after
  // one and the same clock. Later reads tell it again, unless workers may ask again
  // (ServerOptions::stops_again()).
  bool stop = false;
  // Asynchronous: the number of pushes after which the workers meet if `stop` is true. No worker has made so
  // many when it is first told, so that all of them meet after the same number. The number stays after they
  // have met. 0 if synchronous, or if `stop` is false.
  int64_t stop_at = 0;
  // The number of workers lost, which are the first ones of ServerTableStats::lost. If synchronous, it is
  // equal for all reads of a clock.
  int lost = 0;
};

// T: float or double. Not thread-safe. Errors: CommError for requests that a worker must not make, such as a
// push at another clock than its own.
template <typename T>
class ServerTable {
 public:
  // sizes: the elements of each of the shard's partitions, which lie one after another.
  ServerTable(std::vector<size_t> sizes, const ServerOptions& options);

  // Adds a worker. partitions: the indices of those that it owns, ascending. A worker that has not joined
  // counts as one that has not pushed.
  void join(int worker, std::vector<size_t> partitions);
  // Removes a worker that is lost or has said goodbye. Its clock no longer holds up reads.
  void retire(int worker, bool lost);

  // Sets the worker's partitions: the parameters, then the states one after another. Without states they are
  // zeros. updates: the number of updates that made them.
  void load(int worker, int64_t updates, std::span<const T> values);

  // Returns false while a snapshot is being taken that this worker has already received.
  bool may_push(int worker) const;
  // Takes a gradient: that of the worker's partitions, one after another. The table may exchange `gradient`
  // for another buffer of equal size. A gradient or loss that is not finite is refused with a CommError,
  // before it changes anything. A CommError also says that the sum of a clock's gradients is not finite. The
  // parameters may then have changed, so every later push, read and snapshot of any worker gets that error.
  PushOutcome push(int worker, int64_t clock, const PushNotes& notes, std::vector<T>& gradient);

  // Copies the worker's partitions to `out` and returns what they are. Returns nothing while the worker must
  // wait. min_loads: the number of load() calls of each partition that the worker waits for.
  std::optional<ReadGrant> try_read(int worker, int64_t clock, int64_t min_loads, std::vector<T>& out);

  // Records that a worker requests the next snapshot.
  void request_snapshot(int worker);
  // What try_snapshot() copies: nothing, the worker's partitions (parameters), or the whole shard
  // (parameters, then states).
  enum class Want { kNothing, kOwn, kWhole };
  // Copies what the worker wants of the snapshot to `out`. Returns nothing while the worker must wait.
  std::optional<ReadGrant> try_snapshot(int worker, Want want, std::vector<T>& out);

  // Returns the number of elements that a worker owns.
  size_t count_of(int worker) const { return workers_[worker].count; }
  // Returns the number of elements of the shard.
  size_t count() const { return master_.size(); }
  // Returns the number of states of the update rule per element.
  int state_count() const { return static_cast<int>(states_.size()); }
  // Returns the number of updates of the partition that has most.
  int64_t updates() const;
  // Returns whether the worker has not been retired.
  bool present(int worker) const { return workers_[worker].phase != Phase::kRetired; }
  // Returns the parameters of all partitions.
  const std::vector<T>& parameters() const { return master_; }
  // Returns the counts.
  const ServerTableStats& stats() const { return stats_; }
  // Returns the recorded events, in order.
  const std::vector<ServerTableEvent>& events() const { return events_; }

 private:
  enum class Phase { kExpected, kActive, kRetired };
  struct Worker {
    Phase phase = Phase::kExpected;
    std::vector<size_t> partitions;  // the owned ones, ascending
    size_t count = 0;
    int64_t clock = 0;
    // By partition of the worker: changes_ at the last read, plus the worker's own updates since.
    std::vector<int64_t> seen;
    int told = 0;                   // losses that the last read reported
    int64_t asked = 0, served = 0;  // snapshots
    bool holds = false;             // `gradient` waits until its clock is complete
    std::vector<T> gradient;
    PushNotes notes;
  };

  // Returns whether reads wait for the worker: it is active and owns partitions, or it has not joined yet.
  bool counts(const Worker& w) const;
  bool is_cold(int worker) const;
  int64_t slowest_clock() const;
  int64_t stop_clock() const;
  void check_clock(int worker, int64_t clock, int64_t expected, const char* what) const;
  void check_usable() const;
  void check_finite(int worker, int64_t clock, const PushNotes& notes, const std::vector<T>& gradient) const;
  PushOutcome hold(int worker, int64_t clock, std::vector<T>& gradient);
  bool must_redo(const Worker& w) const { return options_.redo_after_loss && w.told < told_of_; }
  void break_off();
  void apply_now(int worker, const std::vector<T>& gradient);
  void close_round_if_complete();
  void apply_round();
  [[noreturn]] void spoil();
  bool apply_own(size_t partition, std::span<const T* const> gradients, double scale, double lr);
  // Returns whether the scaled sum of the gradients is finite.
  bool apply_to(size_t partition, std::span<const T* const> gradients, double scale, double lr);
  ReadGrant grant_to(int worker, int64_t clock);
  void copy_own(int worker, std::vector<T>& out) const;
  void see(Worker& w);
  double mean_loss() const;
  void record(ServerTableAction action, int worker, int64_t clock, int64_t value = 0);

  const ServerOptions options_;
  const UpdateRule rule_;
  std::unique_ptr<PartitionRule> own_rule_;  // null: rule_ updates
  const std::vector<size_t> sizes_;
  std::vector<size_t> offset_;  // of each partition
  std::vector<T> master_;
  std::vector<std::vector<T>> states_;
  std::vector<int64_t> steps_;    // updates of each partition: t of Adam
  std::vector<int64_t> loads_;    // of each partition
  std::vector<int64_t> changes_;  // updates of each partition in this run
  std::vector<Worker> workers_;
  int64_t clock_ = 0;           // synchronous: updates made
  std::vector<T> sum_;          // synchronous, in order of arrival: sum of the open clock's gradients
  std::vector<double> summed_;  // by partition: weight in sum_, in units of sum_unit_
  double sum_unit_ = 1;         // weight of the open clock's first gradient that has one
  double round_loss_ = 0;
  std::string spoiled_;  // why the parameters must not be used any more; empty: they are right
  // Losses that reads report: those at the time when the last clock was closed or the open clock was begun
  // again.
  int told_of_ = 0;
  std::optional<int64_t> stop_after_;  // asynchronous: ReadGrant::stop_at
  ServerTableStats stats_;
  std::vector<ServerTableEvent> events_;
};

}  // namespace starling
