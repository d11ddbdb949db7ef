// HogwildTeam is the threads of a rank that train its parameters x without locks (train.threads_mode =
// "hogwild"). Source: Recht, Re, Wright, Niu, "Hogwild!: A Lock-Free Approach to Parallelizing Stochastic
// Gradient Descent", NIPS 2011, arXiv 1106.5730.
//
// A step's batch of n samples is cut into N K mini-batches, for N threads and K updates of each thread. A
// thread repeats, K times and without waiting for other threads:
//
//   x̂ ← read x.                          (optim/hogwild_update.h)
//   g ← gradient of the mean loss of its next mini-batch, of m samples, at x̂.
//   x ← x − lr m/n (g + weight_decay x̂).  Element by element, or only where g is not 0.
//
// The step ends when all threads have made their updates. So at most (N − 1) K updates of other threads lie
// between the read of a thread and its update. If all reads saw the x before the step, the step would be that
// of synchronous SGD on the whole batch.
//
// Each thread has a module, a copy x̂ and a gradient of its own. The reason is that the operators of libtorch
// read and write their tensors without atomic operations. Buffers (running statistics) are equal in all
// threads when a step begins. Afterwards the rank has the mean over the threads, and the first thread's
// values of buffers that are not floating-point numbers.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "starling/parallel/replica/flat_replica.h"
#include "starling/parallel/replica/thread_team.h"
#include "starling/parallel/strategy.h"

namespace starling {

// What a thread does with the parameters of its rank.
enum class HogwildAccess { kRead, kUpdate };

// The threads of one rank. Not thread-safe: one thread must drive the team.
class HogwildTeam {
 public:
  // options.hogwild: the number of threads, at least 1, and what they do. The rule is sgd without momentum
  // and without averaged weights.
  HogwildTeam(const ModelFactory& factory, const UpdateRule& rule, const FlatReplicaOptions& options);

  // Performs the step's updates of shared.parameters(). Returns the mean loss over the samples, each
  // mini-batch at the parameters that its thread had read. If the batch has fewer samples than mini-batches,
  // each sample is a mini-batch. A weighted loss is divided by the weight of its own mini-batch. Errors:
  // Error(kNumeric) for a loss or a gradient that is not finite, naming the rank, the step and the first
  // parameter that is not finite. That gradient was not applied, but other updates of the step were.
  double step(const Batch& batch, const Step& step, FlatReplica& shared);

  // Sets what each thread calls before an access, and after it (`done`). Tests fix the order of the accesses
  // by it. Threads call it at the same time.
  void set_on_access(std::function<void(int thread, HogwildAccess access, bool done)> on_access) {
    on_access_ = std::move(on_access);
  }

  // Adds the statistics of this rank since the team was made: threads, thread_updates, touched_share,
  // mean_delay, largest_delay and retries.
  void tell(StrategyStats& stats) const;

 private:
  // What one thread has done so far.
  struct Count {
    uint64_t updates = 0, touched = 0, retries = 0;
    uint64_t delays = 0;  // the sum over the updates
    uint64_t largest_delay = 0;
  };

  template <typename T>
  double update_once(int thread, const Batch& part, double share, const Step& step, FlatReplica& shared);
  template <typename T>
  void apply(FlatReplica& own, double share, const Step& step, FlatReplica& shared, Count& count);
  void share_buffers(FlatReplica& shared);
  void take_buffers(FlatReplica& shared, size_t active);

  HogwildOptions options_;
  std::function<void(int thread, HogwildAccess access, bool done)> on_access_;  // may be empty
  std::vector<std::unique_ptr<FlatReplica>> workers_;                           // one per thread
  std::vector<Count> counts_;                                                   // by thread
  std::atomic<uint64_t> updates_ = 0;                                           // by all threads
  std::atomic<bool> failed_ = false;
  ThreadTeam team_;  // the last member, so that the threads end first
};

}  // namespace starling
