// DataLoader gives a program's own training loop the batches of its rank (Run::loader()).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "starling/data/source.h"

namespace starling {

class Run;

// One rank's share of a batch.
struct LoaderBatch {
  at::Tensor data;    // inputs [n, …]
  at::Tensor target;  // targets [n, …]; undefined if the data set has none
  at::Tensor keys;    // [n] int64, Batch::keys
  // The number of samples of this rank that count. It is 0 at the end of an epoch with fewer samples than
  // ranks left. The tensors then hold a sample of another rank, and DistributedOptimizer gives its gradient
  // the weight 0.
  int64_t samples = 0;
  int64_t all_samples = 0;  // of all ranks
  // The inputs after `data`, if the data set has several.
  std::vector<at::Tensor> more_data = {};
  // The targets after `target`, if the data set has several.
  std::vector<at::Tensor> more_targets = {};

  // Returns `data` and `more_data`.
  std::vector<at::Tensor> inputs() const { return joined(data, more_data); }
  // Returns `target`, if it is defined, and `more_targets`.
  std::vector<at::Tensor> targets() const { return joined(target, more_targets); }

 private:
  static std::vector<at::Tensor> joined(const at::Tensor& first, const std::vector<at::Tensor>& more) {
    std::vector<at::Tensor> all;
    if (first.defined()) all.push_back(first);
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
};

// The batches of an epoch, in an order that depends on train.seed and the epoch alone. Each loop over the
// loader is one epoch:
//
//   auto loader = run.loader(train, 64);
//   while (loader.epoch() < 10) {
//     for (auto& batch : loader) …
//   }
//
// All ranks see the same number of batches. The last batch of an epoch may be smaller. A loader that
// ProgramCheckpoint::resume() has restored begins where the checkpoint was written, also within an epoch. If
// the run is to end (Run::stopping()), the next batch ends the process, or throws Error (kInterrupted) after
// Run::throw_faults(). Threads read batches ahead (data.workers). Not thread-safe. The run must outlive the
// loader.
class DataLoader {
 public:
  ~DataLoader();
  DataLoader(DataLoader&&) noexcept;

  // The number of whole epochs so far. The epoch of a loop that runs is not whole.
  int64_t epoch() const;
  // The number of batches in an epoch.
  int64_t batches_per_epoch() const;
  // The number of batches given out so far, over all epochs.
  int64_t position() const;

  // Marks the end of a loop.
  struct Sentinel {};
  // Walks over the batches of one epoch.
  class Iterator {
   public:
    // The present batch. It is valid until the next ++.
    LoaderBatch& operator*() { return loader_.current(); }
    // See operator*.
    LoaderBatch* operator->() { return &loader_.current(); }
    // Goes to the next batch.
    Iterator& operator++() {
      loader_.advance();
      return *this;
    }
    // True after the last batch of the epoch.
    bool operator==(Sentinel /*end*/) const { return loader_.at_end(); }

   private:
    friend class DataLoader;
    explicit Iterator(DataLoader& loader) : loader_(loader) {}
    DataLoader& loader_;
  };
  // Begins an epoch. If the loop before was left early, its other batches are skipped. This call and ++ read
  // the source. They handle its faults as Run::fit() does.
  Iterator begin();
  // The end of each epoch.
  Sentinel end() const { return {}; }

 private:
  friend class Run;
  friend class ProgramCheckpoint;
  struct State;
  explicit DataLoader(std::unique_ptr<State> state);
  LoaderBatch& current();
  void advance();
  bool at_end() const;
  bool open() const;
  void go_to(int64_t position, bool open);

  std::unique_ptr<State> state_;
};

}  // namespace starling
