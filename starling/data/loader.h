// Loader returns the batches of a run in order. Threads read them ahead.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "starling/base/error.h"
#include "starling/data/read_stall.h"
#include "starling/data/source.h"
#include "starling/spec/run_spec.h"

namespace starling {

// Returns the index of the sample at `position` of `epoch`. For Order::kShuffled, this is a keyed
// pseudo-random permutation of 0 … size - 1, computed without a table and independent of the number of ranks.
// For Order::kSequential, it is the identity.
int64_t sample_at(uint64_t seed, int64_t epoch, int64_t position, int64_t size, Order order);

// The options of a loader.
struct LoaderOptions {
  uint64_t seed = 0;
  Order order = Order::kShuffled;
  int64_t global_batch = 64;
  // This rank reads positions [rank * B / ranks, (rank + 1) * B / ranks) of each global batch of B samples.
  int rank = 0;
  int ranks = 1;
  bool unequal = false;  // true: B need not be a multiple of ranks
  // The part of each rank, in any unit (divide_samples.h). The ranks then read consecutive positions, as many
  // as divide_samples() gives them. Empty: equal parts. With parts, B need not be a multiple of ranks.
  std::vector<double> parts = {};
  int64_t least = 1;  // with parts: the least number of samples of a rank in a batch (divide_samples.h)
  // true: the last batch of an epoch holds the samples that are left over, if there are any. They are divided
  // as a whole batch is. A rank without a sample gets the first of them, which another rank has, too.
  bool remainder = false;
  int64_t workers = 1;     // threads that read ahead, up to 256; 0: next() reads
  int64_t prefetch = 4;    // batches that are read ahead, 1 to 4096, but at least one for each worker
  int64_t first_step = 0;  // number of global batches already used, for a resumed run
  // The step at which the run ends, counted as first_step is. With workers, a batch of a later step is read
  // when next() asks for it. 0: unknown.
  int64_t total_steps = 0;
  // With workers: a wait of this many seconds is reported, and again whenever it has doubled. 0: never.
  double stall_s = 0;
  // Called by next() for these reports, and for the end of a wait that was reported. Empty: no reports.
  std::function<void(const ReadStall&)> on_stall = {};
  // Longest wait of next() in seconds. A longer one means that a disk or network file system does not
  // respond.
  double read_timeout_s = 600;
  // Longest wait of the destructor in seconds for reads that go on. Reads that take longer are left behind.
  double leave_s = 5;
};

// An endless sequence of batches. After the last whole global batch of an epoch, the next epoch begins. The
// remainder of the epoch is left out unless the options ask for it. Not thread-safe: one thread calls next().
//
// The destructor ends the workers. A worker whose read does not end within leave_s is left behind: it holds
// the source until its read ends. What the source refers to must therefore outlive the process's reads.
class Loader {
 public:
  virtual ~Loader() = default;
  // Returns this rank's share of the next global batch. Rethrows what a worker threw. Errors: TimeoutError if
  // the workers deliver no batch within read_timeout_s. The destructor then leaves the workers that still
  // read behind at once.
  virtual Batch next() = 0;
  // Returns the seconds that next() has waited because no batch was ready. Without workers, these are the
  // seconds that it has read.
  virtual double waited_s() const = 0;
  // The number of global batches in an epoch.
  virtual int64_t steps_per_epoch() const = 0;
};

// The positions of one rank in a global batch.
struct RankShare {
  int64_t first = 0;    // within the global batch
  int64_t samples = 0;  // of this rank; may be 0 if there are fewer samples than ranks
  int64_t of = 0;       // the samples of all ranks
};

// Returns the share of the options' rank in a global batch of `size` samples.
RankShare share_of(const LoaderOptions& options, int64_t size);

// Returns the number of samples of global batch `step` of an epoch of `samples` samples.
int64_t samples_of_step(const LoaderOptions& options, int64_t samples, int64_t step);

// Reads the samples at `count` positions of an epoch, from `first` on, with their keys. It uses the seed and
// the order of the options. Errors: those of Source::read().
Batch read_positions(const Source& source, const LoaderOptions& options, int64_t epoch, int64_t first,
                     int64_t count);

// Returns the error that says that the source is smaller than a global batch.
ConfigError too_few_samples(const Source& source, int64_t global_batch);

// Checks the options against the source. Errors: ConfigError if the batch is not a multiple of the ranks,
// unless `unequal` or `parts` allows that. ConfigError if the batch has fewer samples than there are ranks.
// ConfigError also if the source holds fewer samples than a global batch, unless `remainder` is true, and for
// a number that is out of range.
void check_loader_options(const Source& source, const LoaderOptions& options);

// Makes the loader of one rank. Errors: those of check_loader_options().
std::unique_ptr<Loader> make_loader(std::shared_ptr<const Source> source, const LoaderOptions& options);

}  // namespace starling
