#include "starling/data/served/served_loader.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "starling/base/error.h"

namespace starling {
namespace {

constexpr std::chrono::minutes kBatchTimeout{10};

class LeasedLoader final : public Loader {
 public:
  LeasedLoader(std::shared_ptr<const Source> source, const LoaderOptions& options,
               std::unique_ptr<TicketStream> tickets)
      : source_(std::move(source)),
        options_(options),
        steps_per_epoch_(source_->size() / options.global_batch),
        tickets_(std::move(tickets)),
        thread_([this] { read_ahead(); }) {}

  ~LeasedLoader() override {
    settle_last();
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    room_.notify_all();
    thread_.join();
  }

  Batch next() override {
    if (in_use_) tickets_->settle(*in_use_);
    in_use_.reset();
    std::unique_lock lock(mutex_);
    const auto start = std::chrono::steady_clock::now();
    const bool came = ready_.wait_for(lock, kBatchTimeout, [this] { return !batches_.empty() || error_; });
    waited_s_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (batches_.empty() && error_) std::rethrow_exception(error_);
    if (!came)
      throw TimeoutError(fmt::format("the data server at {} gave no batch within {} minutes",
                                     tickets_->address(), kBatchTimeout.count()),
                         options_.rank);
    Leased leased = std::move(batches_.front());
    batches_.pop_front();
    lock.unlock();
    room_.notify_one();
    in_use_ = leased.ticket;
    return std::move(leased.batch);
  }
  double waited_s() const override { return waited_s_; }
  int64_t steps_per_epoch() const override { return steps_per_epoch_; }

 private:
  struct Leased {
    int64_t ticket = 0;
    Batch batch;
  };

  // Settles the batch that next() returned last, if the loader ends in order.
  void settle_last() {
    if (!in_use_ || std::uncaught_exceptions() > 0) return;
    try {
      tickets_->settle(*in_use_);
    } catch (const Error&) {
      // The server has ended already, so its counts are no longer needed.
    }
  }

  void read_ahead() {
    try {
      for (;;) {
        {
          std::unique_lock lock(mutex_);
          room_.wait(lock, [this] {
            return stopping_ || static_cast<int64_t>(batches_.size()) < options_.prefetch;
          });
          if (stopping_) return;
        }
        const int64_t ticket = tickets_->next();
        Leased leased{ticket, read(ticket)};
        {
          const std::lock_guard lock(mutex_);
          batches_.push_back(std::move(leased));
        }
        ready_.notify_one();
      }
    } catch (...) {
      const std::lock_guard lock(mutex_);
      error_ = std::current_exception();
    }
    ready_.notify_one();
  }

  Batch read(int64_t ticket) const {
    const int64_t batch = options_.global_batch / options_.ranks;
    const int64_t per_epoch = steps_per_epoch_ * options_.ranks;
    return read_positions(*source_, options_, ticket / per_epoch, ticket % per_epoch * batch, batch);
  }

  const std::shared_ptr<const Source> source_;
  const LoaderOptions options_;
  const int64_t steps_per_epoch_;
  const std::unique_ptr<TicketStream> tickets_;
  std::optional<int64_t> in_use_;  // ticket of the batch that next() returned last
  double waited_s_ = 0;

  std::mutex mutex_;  // guards all members below
  std::condition_variable ready_, room_;
  std::deque<Leased> batches_;
  std::exception_ptr error_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<Loader> make_leased_loader(std::shared_ptr<const Source> source, const LoaderOptions& options,
                                           std::unique_ptr<TicketStream> tickets) {
  check_loader_options(*source, options);
  return std::make_unique<LeasedLoader>(std::move(source), options, std::move(tickets));
}

}  // namespace starling
