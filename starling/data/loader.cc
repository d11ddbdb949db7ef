#include "starling/data/loader.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "starling/base/error.h"
#include "starling/base/keyed_random.h"
#include "starling/data/divide_samples.h"

namespace starling {
namespace {

using SteadyClock = std::chrono::steady_clock;

// Longest time that a read may take. A longer read means that a disk or network file system does not respond.
constexpr std::chrono::minutes kReadTimeout{10};

// The samples of one step for one rank.
struct Plan {
  std::shared_ptr<const Source> source;
  LoaderOptions options;
  int64_t steps_per_epoch = 0;

  Batch read(int64_t step) const {
    const int64_t of_epoch = step % steps_per_epoch;
    const RankShare share = share_of(options, samples_of_step(options, source->size(), of_epoch));
    const int64_t first = of_epoch * options.global_batch + (share.samples > 0 ? share.first : 0);
    return read_positions(*source, options, step / steps_per_epoch, first,
                          std::max<int64_t>(1, share.samples));
  }
};

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
    waited_ += std::chrono::duration<double>(SteadyClock::now() - start).count();
    return batch;
  }
  double waited_s() const override { return waited_; }
  int64_t steps_per_epoch() const override { return plan_.steps_per_epoch; }

 private:
  Plan plan_;
  int64_t step_;
  double waited_ = 0;
};

// The loader for one or more workers: a ring of slots, as many as the larger one of `prefetch` and `workers`.
// Workers claim steps in order and fill slot step % slots. next() empties the slots in order. mutex_ guards
// slots_, claimed_, delivered_ and stopping_. Batches are read without the lock.
class PrefetchLoader final : public Loader {
 public:
  explicit PrefetchLoader(Plan plan)
      : plan_(std::move(plan)),
        slots_(static_cast<size_t>(std::max(plan_.options.prefetch, plan_.options.workers))),
        claimed_(plan_.options.first_step),
        delivered_(plan_.options.first_step) {
    try {
      for (int64_t i = 0; i < plan_.options.workers; ++i) workers_.emplace_back([this] { work(); });
    } catch (...) {
      stop();
      throw;
    }
  }
  ~PrefetchLoader() override { stop(); }

  Batch next() override {
    std::unique_lock lock(mutex_);
    Slot& slot = slot_of(delivered_);
    if (!slot.full) wait_for(slot, lock);
    // the slot stays, so every later call reports the error again
    if (slot.error) std::rethrow_exception(slot.error);
    Batch batch = std::move(slot.batch);
    slot = Slot{};
    ++delivered_;
    lock.unlock();
    room_.notify_one();
    return batch;
  }
  double waited_s() const override { return waited_.load(std::memory_order_relaxed); }
  int64_t steps_per_epoch() const override { return plan_.steps_per_epoch; }

 private:
  struct Slot {
    bool full = false;
    Batch batch;
    std::exception_ptr error;
  };

  Slot& slot_of(int64_t step) { return slots_[static_cast<size_t>(step) % slots_.size()]; }

  void wait_for(Slot& slot, std::unique_lock<std::mutex>& lock) {
    const auto start = SteadyClock::now();
    const bool came = ready_.wait_for(lock, kReadTimeout, [&] { return slot.full; });
    const double seconds = std::chrono::duration<double>(SteadyClock::now() - start).count();
    waited_.store(waited_.load(std::memory_order_relaxed) + seconds, std::memory_order_relaxed);
    if (!came) {
      throw TimeoutError(
          fmt::format("{}: the batch of step {} was not read within {} minutes: the disk, the network file "
                      "system or the program's data source does not respond",
                      plan_.source->info().name, delivered_, kReadTimeout.count()),
          plan_.options.rank);
    }
  }

  void work() {
    for (;;) {
      int64_t step = 0;
      {
        std::unique_lock lock(mutex_);
        room_.wait(lock,
                   [&] { return stopping_ || claimed_ < delivered_ + static_cast<int64_t>(slots_.size()); });
        if (stopping_) return;
        step = claimed_++;
      }
      Slot filled;
      filled.full = true;
      try {
        filled.batch = plan_.read(step);
      } catch (...) {
        filled.error = std::current_exception();
      }
      {
        std::lock_guard lock(mutex_);
        slot_of(step) = std::move(filled);
      }
      ready_.notify_one();
    }
  }

  void stop() {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    room_.notify_all();
    for (std::thread& worker : workers_) worker.join();
    workers_.clear();
  }

  const Plan plan_;
  mutable std::mutex mutex_;
  std::condition_variable ready_;  // signals that a slot was filled
  std::condition_variable room_;   // signals that a slot was emptied, or that the loader ends
  std::vector<Slot> slots_;
  int64_t claimed_;    // the next step that a worker takes
  int64_t delivered_;  // the next step that next() returns
  bool stopping_ = false;
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
  if (o.prefetch < 1 || o.prefetch > 4096) {
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
