// LoopState is shared by the parts of a user's own loop on one rank: the loader, the optimizers and the
// checkpoint.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>

namespace starling {

// The samples since the last update, and whether the run is to end. Not thread-safe.
class LoopState {
 public:
  // `loader` gave out a batch: `own` samples of this rank of `all` samples. Batches of another loader begin a
  // new sum. If `own` is 0, the batch has a sample of another rank, whose gradient does not count.
  void add_batch(const void* loader, int64_t own, int64_t all) {
    borrows_ = own == 0;
    for (const auto& [strategy, begin] : batches) begin(borrows_);
    if (used_ || loader != loader_) own_ = all_ = 0;
    used_ = false;
    loader_ = loader;
    own_ += own;
    all_ += all;
  }
  // Returns the weight of this rank's gradient in the mean over `ranks` ranks, by its samples since the last
  // update. 1 if no loader gave out a batch.
  double weight(int ranks) const {
    return all_ == 0 ? 1 : static_cast<double>(own_) * ranks / static_cast<double>(all_);
  }
  // Returns true if the last batch has no sample of this rank.
  bool borrows() const { return borrows_; }
  // An optimizer used the gradients of the batches so far. Further optimizers may use them, too.
  void use() { used_ = true; }
  // Leaves the servers of all strategies: the process ends without their destructors.
  void leave_servers() {
    ended.reset();
    for (const auto& [strategy, leave] : leaves) leave();
    leaves.clear();
  }

  // By strategy: what it does when a batch begins. `borrowed` is true if the batch has no sample of this
  // rank.
  std::map<const void*, std::function<void(bool)>> batches;
  // The tensors that some optimizer of the loop updates.
  std::set<const void*> updated;
  // True once the ranks have agreed to end, after SIGTERM or Ctrl-C.
  bool stopping = false;
  // The number of strategies with servers that the loop has made.
  int services = 0;
  // By strategy with servers: tells its servers that this rank ends. The strategy is then of no further use.
  std::map<const void*, std::function<void()>> leaves;
  // The last strategy with servers that the loop has ended. Servers leave when no worker is left, so it stays
  // with them until the run ends or the loop makes another one.
  std::shared_ptr<void> ended;

 private:
  int64_t own_ = 0, all_ = 0;
  const void* loader_ = nullptr;
  bool used_ = false, borrows_ = false;
};

}  // namespace starling
