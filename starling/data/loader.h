// Loader: the batches of a run in their order, read ahead by threads.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "starling/data/source.h"
#include "starling/spec/run_spec.h"

namespace starling {

// The index of the sample at `position` of `epoch`: a keyed pseudo-random permutation of 0 … size - 1 (or the identity
// for Order::kSequential), computed without a table and independent of the number of ranks.
int64_t sample_at(uint64_t seed, int64_t epoch, int64_t position, int64_t size, Order order);

struct LoaderOptions {
  uint64_t seed = 0;
  Order order = Order::kShuffled;
  int64_t global_batch = 64;
  int rank =
      0;  // this rank reads positions [rank * B / ranks, (rank + 1) * B / ranks) of each global batch B
  int ranks = 1;
  bool unequal = false;  // B need not be a multiple of ranks
  int64_t workers = 1;
  int64_t prefetch = 4;
  int64_t first_step = 0;  // resume: the number of global batches already used
};

// Endless: after the last whole global batch of an epoch comes the next epoch (the remainder is left out).
// Not thread-safe: one thread calls next().
class Loader {
 public:
  virtual ~Loader() = default;
  // The next batch of this rank: its share of the global batch. Rethrows what a worker threw.
  virtual Batch next() = 0;
  // Seconds that next() has waited because no batch was ready.
  virtual double waited_s() const = 0;
  virtual int64_t steps_per_epoch() const = 0;
};

// Errors: ConfigError when the batch does not divide by ranks, or the source holds fewer samples than a global batch.
void check_loader_options(const Source& source, const LoaderOptions& options);

// Errors: ConfigError when the batch does not divide by ranks, or the source holds fewer samples than a global batch.
std::unique_ptr<Loader> make_loader(std::shared_ptr<const Source> source, const LoaderOptions& options);

}  // namespace starling
