#include "starling/data/loader.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <exception>
#include <limits>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "starling/base/error.h"
#include "starling/base/keyed_random.h"
#include "starling/data/divide_samples.h"
#include "starling/data/read_place.h"

namespace starling {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr int64_t kMostPrefetch = 4096;  // the largest data.prefetch

// The samples of one step for one rank.
struct Plan {
  std::shared_ptr<const Source> source;
  LoaderOptions options;
  int64_t steps_per_epoch = 0;

  // The positions of this rank in step `step`, counted from 0.
  struct Positions {
    int64_t epoch, first, count;
  };
  Positions positions(int64_t step) const {
    const int64_t of_epoch = step % steps_per_epoch;
    const RankShare share = share_of(options, samples_of_step(options, source->size(), of_epoch));
    const int64_t first = of_epoch * options.global_batch + (share.samples > 0 ? share.first : 0);
    return {step / steps_per_epoch, first, std::max<int64_t>(1, share.samples)};
  }

  Batch read(int64_t step) const {
    const Positions at = positions(step);
    return read_positions(*source, options, at.epoch, at.first, at.count);
  }
};

double seconds_since(SteadyClock::time_point start) {
  return std::chrono::duration<double>(SteadyClock::now() - start).count();
}

at::Tensor keys_of(const std::vector<int64_t>& indices, uint64_t seed, int64_t epoch) {
  constexpr uint64_t kStream = 0x6B657973ULL;  // distinct from the numbers of the order and the augmentation
  const at::Tensor keys = at::empty({static_cast<int64_t>(indices.size())}, at::kLong);
  auto* out = keys.mutable_data_ptr<int64_t>();
  for (size_t i = 0; i < indices.size(); ++i) {
    out[i] = static_cast<int64_t>(
        key_of(seed + kStream, static_cast<uint64_t>(epoch), static_cast<uint64_t>(indices[i])));
  }
  return keys;
}

// The loader for workers = 0. It reads in next().
class DirectLoader final : public Loader {
 public:
  explicit DirectLoader(Plan plan) : plan_(std::move(plan)), step_(plan_.options.first_step) {}

  Batch next() override {
    const auto start = SteadyClock::now();
    Batch batch = plan_.read(step_);
    ++step_;
    waited_ += seconds_since(start);
    return batch;
  }
  double waited_s() const override { return waited_; }
  int64_t steps_per_epoch() const override { return plan_.steps_per_epoch; }

 private:
  Plan plan_;
  int64_t step_;
  double waited_ = 0;
};

// A ring of slots, as many as the larger one of `prefetch` and `workers`. Workers claim steps in order and
// fill slot step % slots. The loader empties the slots in order. mutex guards slots, reading, claimed, end,
// delivered and stopping. Batches are read without the lock. The workers share the ring with the loader, so
// that a worker whose read never ends can be left behind.
struct Ring {
  struct Slot {
    bool full = false;
    Batch batch;
    std::exception_ptr error;
  };

  explicit Ring(Plan what)
      : plan(std::move(what)),
        slots(static_cast<size_t>(std::max(plan.options.prefetch, plan.options.workers))),
        places(slots.size()),
        reading(static_cast<size_t>(plan.options.workers)),
        claimed(plan.options.first_step),
        end(plan.options.total_steps > 0 ? plan.options.total_steps : std::numeric_limits<int64_t>::max()),
        delivered(plan.options.first_step) {}

  size_t index_of(int64_t step) const { return static_cast<size_t>(step) % slots.size(); }

  // Returns true if a worker may take the next step. The caller holds the lock.
  bool may_claim() const { return claimed < end && claimed < delivered + static_cast<int64_t>(slots.size()); }
  // Returns true if no worker reads. The caller holds the lock.
  bool none_reads() const { return std::find(reading.begin(), reading.end(), 1) == reading.end(); }

  // Reads batches until the ring stops. Called by each worker with its number.
  void work(size_t worker) {
    for (;;) {
      int64_t step = 0;
      {
        std::unique_lock lock(mutex);
        room.wait(lock, [&] { return stopping || may_claim(); });
        if (stopping) return;
        step = claimed++;
        reading[worker] = 1;
        places[index_of(step)].clear();
      }
      Slot filled;
      filled.full = true;
      try {
        const ReadPlaceScope scope(places[index_of(step)]);
        filled.batch = plan.read(step);
      } catch (...) {
        filled.error = std::current_exception();
      }
      {
        std::lock_guard lock(mutex);
        slots[index_of(step)] = std::move(filled);
        reading[worker] = 0;
      }
      ready.notify_one();
      idle.notify_one();
    }
  }

  const Plan plan;
  std::mutex mutex;
  std::condition_variable ready;  // signals that a slot was filled
  std::condition_variable room;  // signals that a slot was emptied, that `end` moved, or that the loader ends
  std::condition_variable idle;  // signals that a worker has ended a read
  std::vector<Slot> slots;
  std::vector<ReadPlace> places;  // what the worker of each slot reads
  std::vector<char> reading;      // 1 for each worker that reads a batch
  int64_t claimed;                // the next step that a worker takes
  int64_t end;                    // the first step that no worker takes before next() asks for it
  int64_t delivered;              // the next step that next() returns
  bool stopping = false;
};

// The loader for one or more workers.
class PrefetchLoader final : public Loader {
 public:
  explicit PrefetchLoader(Plan plan) : ring_(std::make_shared<Ring>(std::move(plan))) {
    try {
      for (size_t i = 0; i < ring_->reading.size(); ++i)
        workers_.emplace_back([ring = ring_, i] { ring->work(i); });
    } catch (...) {
      stop();
      throw;
    }
  }
  ~PrefetchLoader() override { stop(); }

  Batch next() override {
    note_step();
    std::unique_lock lock(ring_->mutex);
    if (ring_->delivered >= ring_->end) {
      ring_->end = ring_->delivered + 1;
      ring_->room.notify_all();
    }
    Ring::Slot& slot = ring_->slots[ring_->index_of(ring_->delivered)];
    if (!slot.full) wait_for(slot, lock);
    // the slot stays, so every later call reports the error again
    if (slot.error) std::rethrow_exception(slot.error);
    Batch batch = std::move(slot.batch);
    slot = Ring::Slot{};
    ++ring_->delivered;
    lock.unlock();
    ring_->room.notify_one();
    returned_ = SteadyClock::now();
    return batch;
  }
  double waited_s() const override { return waited_.load(std::memory_order_relaxed); }
  int64_t steps_per_epoch() const override { return ring_->plan.steps_per_epoch; }

 private:
  const LoaderOptions& options() const { return ring_->plan.options; }

  // Follows the time that the caller spends between two batches.
  void note_step() {
    if (returned_ == SteadyClock::time_point()) return;
    constexpr double kNewest = 0.1;  // weight of the newest step in the mean
    const double step_s = seconds_since(returned_);
    mean_step_s_ = mean_step_s_ == 0 ? step_s : (1 - kNewest) * mean_step_s_ + kNewest * step_s;
  }

  // Waits with the lock held until the slot is full, and without it while a report is made.
  void wait_for(const Ring::Slot& slot, std::unique_lock<std::mutex>& lock) {
    const auto start = SteadyClock::now();
    const double never = 2 * options().read_timeout_s;
    double report_s = options().stall_s > 0 && options().on_stall ? options().stall_s : never;
    bool reported = false, came = false;
    while (!came) {
      const double until_s = std::min(report_s, options().read_timeout_s);
      const auto until =
          start + std::chrono::duration_cast<SteadyClock::duration>(std::chrono::duration<double>(until_s));
      came = ring_->ready.wait_until(lock, until, [&] { return slot.full; });
      if (came || until_s < report_s) break;
      report(seconds_since(start), false, lock);
      reported = true;
      report_s *= 2;
    }
    const double seconds = seconds_since(start);
    waited_.store(waited_.load(std::memory_order_relaxed) + seconds, std::memory_order_relaxed);
    if (!came) give_up(seconds);
    if (reported) report(seconds, true, lock);
  }

  void report(double seconds, bool over, std::unique_lock<std::mutex>& lock) {
    const int64_t step = ring_->delivered;
    lock.unlock();
    const Plan::Positions at = ring_->plan.positions(step);
    ReadStall stall{ring_->plan.source->info().name,
                    ring_->places[ring_->index_of(step)].text(),
                    step + 1,
                    at.epoch,
                    at.first,
                    at.count,
                    seconds,
                    over,
                    std::ssize(ring_->slots),
                    options().workers};
    if (over && mean_step_s_ > 0) {
      const double more = std::min(std::ceil(seconds / mean_step_s_), double{kMostPrefetch});
      stall.bridging = std::min<int64_t>(kMostPrefetch, stall.prefetch + static_cast<int64_t>(more));
    }
    options().on_stall(stall);
    lock.lock();
  }

  [[noreturn]] void give_up(double seconds) {
    given_up_ = true;
    const std::string place = ring_->places[ring_->index_of(ring_->delivered)].text();
    throw TimeoutError(
        fmt::format("{}: the batch of step {} was not read within {:.0f} s{}{}: the disk, the network file "
                    "system or the program's data source does not respond",
                    ring_->plan.source->info().name, ring_->delivered + 1, seconds,
                    place.empty() ? "" : ", while reading ", place),
        options().rank);
  }

  // Ends the workers. A worker may be in a read that never ends. Such a worker is left behind after leave_s,
  // and after give_up() at once.
  void stop() {
    std::unique_lock lock(ring_->mutex);
    ring_->stopping = true;
    ring_->room.notify_all();
    const std::chrono::duration<double> patience(given_up_ ? 0 : options().leave_s);
    ring_->idle.wait_for(lock, patience, [&] { return ring_->none_reads(); });
    const std::vector<char> reading = ring_->reading;
    lock.unlock();
    for (size_t i = 0; i < workers_.size(); ++i) reading[i] != 0 ? workers_[i].detach() : workers_[i].join();
    workers_.clear();
  }

  const std::shared_ptr<Ring> ring_;
  bool given_up_ = false;
  SteadyClock::time_point returned_{};  // when next() returned last
  double mean_step_s_ = 0;              // of the caller between batches; 0: unknown
  std::atomic<double> waited_{0};
  std::vector<std::thread> workers_;
};

}  // namespace

RankShare share_of(const LoaderOptions& options, int64_t size) {
  if (!options.parts.empty()) {
    const std::vector<int64_t> counts = divide_samples(size, options.parts, options.least);
    const auto own = counts.begin() + options.rank;
    return {std::accumulate(counts.begin(), own, int64_t{0}), *own, size};
  }
  const int64_t first = size * options.rank / options.ranks;
  return {first, size * (options.rank + 1) / options.ranks - first, size};
}

int64_t samples_of_step(const LoaderOptions& options, int64_t samples, int64_t step) {
  return std::min(options.global_batch, samples - step * options.global_batch);
}

Batch read_positions(const Source& source, const LoaderOptions& options, int64_t epoch, int64_t first,
                     int64_t count) {
  std::vector<int64_t> indices(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    indices[static_cast<size_t>(i)] = sample_at(options.seed, epoch, first + i, source.size(), options.order);
  }
  Batch batch = source.read(indices, epoch);
  batch.keys = keys_of(indices, options.seed, epoch);
  return batch;
}

ConfigError too_few_samples(const Source& source, int64_t global_batch) {
  return ConfigError("train.global_batch",
                     fmt::format("{} holds {} samples, fewer than one global batch of {}; "
                                 "use a smaller train.global_batch or more data",
                                 source.info().name, source.size(), global_batch));
}

void check_loader_options(const Source& source, const LoaderOptions& o) {
  const int64_t size = source.size();
  if (o.ranks < 1 || o.rank < 0 || o.rank >= o.ranks) {
    throw ConfigError("train.ranks", fmt::format("rank {} of {} does not exist", o.rank, o.ranks));
  }
  if (!o.parts.empty() && std::ssize(o.parts) != o.ranks) {
    throw ConfigError("data.share", fmt::format("{} parts for {} ranks: give one number for each rank",
                                                o.parts.size(), o.ranks));
  }
  const bool unequal = o.unequal || !o.parts.empty();
  if (o.global_batch < o.ranks || (o.global_batch % o.ranks != 0 && !unequal)) {
    const int64_t near = std::max<int64_t>(o.ranks, o.global_batch / o.ranks * o.ranks);
    throw ConfigError(
        "train.global_batch",
        fmt::format("{} samples cannot be divided among {} ranks; use a multiple of {}, such as {}",
                    o.global_batch, o.ranks, o.ranks, near));
  }
  if (size < o.global_batch && !(o.remainder && size > 0)) throw too_few_samples(source, o.global_batch);
  if (o.workers < 0 || o.workers > 256) {
    throw ConfigError("data.workers", fmt::format("{} threads; use 0 (read when asked) to 256", o.workers));
  }
  if (o.prefetch < 1 || o.prefetch > kMostPrefetch) {
    throw ConfigError("data.prefetch", fmt::format("{} batches; use 1 to 4096", o.prefetch));
  }
  if (o.first_step < 0) throw ConfigError("first_step", fmt::format("{} is negative", o.first_step));
}

std::unique_ptr<Loader> make_loader(std::shared_ptr<const Source> source, const LoaderOptions& options) {
  check_loader_options(*source, options);
  const int64_t steps_per_epoch =
      (source->size() + (options.remainder ? options.global_batch - 1 : 0)) / options.global_batch;
  Plan plan{std::move(source), options, steps_per_epoch};
  if (options.workers == 0) return std::make_unique<DirectLoader>(std::move(plan));
  return std::make_unique<PrefetchLoader>(std::move(plan));
}

}  // namespace starling
