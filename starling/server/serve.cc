#include "starling/server/serve.h"

#include <fmt/format.h>

#include <bit>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "starling/base/error.h"
#include "starling/server/server_table.h"
#include "starling/server/value_coder.h"

namespace starling {
namespace {

constexpr uint64_t kMaxHello = uint64_t{1} << 22;

// The state that the threads of a shard share.
template <typename T>
class Shard {
 public:
  Shard(const ServerOptions& options, const ServerRendezvous& rendezvous)
      : options_(options), rendezvous_(rendezvous) {}

  void join(int worker, const ServerHello& hello) {
    change([&] {
      if (!table_) {
        shapes_ = hello.shapes;
        std::vector<size_t> sizes;
        for (const TensorShape& shape : shapes_) sizes.push_back(shape.size());
        table_.emplace(std::move(sizes), options_);
        for (const int gone : gone_) table_->retire(gone, true);
      }
      if (hello.element_bytes != sizeof(T) || hello.shapes != shapes_) {
        throw CommError(
            fmt::format("worker {} has another model than earlier workers: {} partitions of {}-byte "
                        "numbers, not {} of {}",
                        worker, hello.shapes.size(), hello.element_bytes, shapes_.size(), sizeof(T)),
            worker);
      }
      table_->join(worker, hello.own_partitions);
    });
  }

  void retire(int worker, const std::string* reason) {
    change([&] {
      if (reason != nullptr) report_.lost.push_back({worker, *reason});
      gone_.push_back(worker);
      if (table_) table_->retire(worker, reason != nullptr);
    });
  }

  // Calls `work` under the mutex and then wakes the threads that wait for a change.
  template <typename Work>
  auto change(const Work& work) {
    struct Wake {
      std::condition_variable& changed;
      ~Wake() { changed.notify_all(); }
    };
    const std::lock_guard lock(mutex_);
    const Wake wake{changed_};
    return work();
  }

  // Calls `attempt` under the mutex, and again after each change, until it returns a value.
  template <typename Attempt>
  auto await(int worker, const char* what, const Attempt& attempt) {
    const Deadline deadline = deadline_in(rendezvous_.idle_timeout);
    std::unique_lock lock(mutex_);
    for (;;) {
      if (auto result = attempt()) {
        changed_.notify_all();  // other workers may push once a snapshot is given
        return result;
      }
      if (changed_.wait_until(lock, deadline) == std::cv_status::timeout && has_passed(deadline)) {
        throw TimeoutError(fmt::format("{} of worker {} could not be answered within {} ms: the other "
                                       "workers did not reach its clock",
                                       what, worker, rendezvous_.idle_timeout.count()),
                           worker);
      }
    }
  }

  void count_bytes(const Link& link) {
    change([&] {
      report_.bytes_sent += link.sent();
      report_.bytes_received += link.received();
    });
  }

  const ServerOptions& options() const { return options_; }
  // Returns the table. Call it after the first join, within change() or await(), or when no thread is left.
  ServerTable<T>& table() { return *table_; }
  ServeReport take_report() {
    if (table_) {
      report_.stats = table_->stats();
      report_.events = table_->events();
    }
    return std::move(report_);
  }

 private:
  const ServerOptions& options_;
  const ServerRendezvous& rendezvous_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<ServerTable<T>> table_;  // guarded by mutex_, like all members below
  std::vector<TensorShape> shapes_;
  std::vector<int> gone_;
  ServeReport report_;
};

// The conversation with one worker.
template <typename T>
class Conversation {
 public:
  Conversation(Shard<T>& shard, Link& link, int worker) : shard_(shard), link_(link), worker_(worker) {}

  // Answers requests until the worker says goodbye.
  void run() {
    greet();
    for (;;) {
      const ServerMessage request = link_.recv_head();
      if (request.code == MessageCode::kGoodbye) return;
      answer(request);
    }
  }

 private:
  using Want = typename ServerTable<T>::Want;

  void greet() {
    const ServerMessage hello = link_.recv_head();
    expect(hello, MessageCode::kHello, link_.peer());
    if (hello.count > kMaxHello) expect_count(hello, kMaxHello, link_.peer());
    expect_bytes(hello, hello.count * 8, link_.peer());
    std::vector<uint64_t> body(hello.count);
    link_.recv_body(writable_bytes_of(body));
    const ServerHello said = decode_hello(body, link_.peer());
    shard_.join(worker_, said);
    std::vector<TensorShape> shapes;
    for (const size_t partition : said.own_partitions) shapes.push_back(said.shapes[partition]);
    pushed_ = ValueCoder<T>(shard_.options().push_codec, shapes, false);
    pulled_ = ValueCoder<T>(shard_.options().pull_codec, shapes, false);
    const auto [own, states] = shard_.change(
        [&] { return std::pair(shard_.table().count_of(worker_), shard_.table().state_count()); });
    own_ = own;
    states_ = static_cast<size_t>(states);
    link_.send({.code = MessageCode::kWelcome, .extra = states});
  }

  void answer(const ServerMessage& request) {
    switch (request.code) {
      case MessageCode::kLoad:
        return load(request);
      case MessageCode::kPush:
        return push(request);
      case MessageCode::kPull:
        return pull(request);
      case MessageCode::kSnapshot:
        return snapshot(request);
      case MessageCode::kStatistics:
        return report(shard_.change([&] { return encode_stats(shard_.table().stats()); }));
      case MessageCode::kEvents:
        return report(shard_.change([&] { return encode_events(shard_.table().events()); }));
      default:
        throw CommError(fmt::format("{} sent '{}', which is no request to a server", link_.peer(),
                                    name_of(request.code)));
    }
  }

  void load(const ServerMessage& request) {
    if (request.count != own_) expect_count(request, own_ * (1 + states_), link_.peer());
    std::vector<T> values;
    plain_.receive(link_, request, values);
    shard_.change([&] { shard_.table().load(worker_, request.extra, values); });
  }

  void push(const ServerMessage& request) {
    expect_count(request, own_, link_.peer());
    pushed_.receive(link_, request, gradient_);
    const PushNotes notes{request.rate, request.loss, request.stop, std::bit_cast<double>(request.extra)};
    shard_.await(worker_, "push", [&] {
      if (!shard_.table().may_push(worker_)) return false;
      shard_.table().push(worker_, request.clock, notes, gradient_);
      return true;
    });
  }

  void pull(const ServerMessage& request) {
    expect_count(request, 0, link_.peer());
    const auto grant = shard_.await(worker_, "pull", [&] {
      return shard_.table().try_read(worker_, request.clock, request.extra, values_);
    });
    send_parameters(*grant, grant->staleness, pulled_);
  }

  void snapshot(const ServerMessage& request) {
    expect_count(request, 0, link_.peer());
    const Want want = request.want == SnapshotWant::kNothing ? Want::kNothing
                      : request.want == SnapshotWant::kOwn   ? Want::kOwn
                                                             : Want::kWhole;
    shard_.change([&] { shard_.table().request_snapshot(worker_); });
    int64_t updates = 0;
    const auto grant = shard_.await(worker_, "snapshot", [&] {
      updates = shard_.table().updates();
      return shard_.table().try_snapshot(worker_, want, values_);
    });
    send_parameters(*grant, updates, plain_);
  }

  void send_parameters(const ReadGrant& grant, int64_t extra, ValueCoder<T>& coder) {
    link_.send({.code = MessageCode::kParameters,
                .stop = grant.stop,
                .lost = grant.lost,
                .clock = grant.clock,
                .count = values_.size(),
                .rate = static_cast<double>(grant.stop_at),
                .loss = grant.loss,
                .extra = extra},
               coder.encode(values_));
  }

  void report(const std::vector<int64_t>& numbers) {
    link_.send({.code = MessageCode::kReport, .count = numbers.size()}, bytes_of(numbers));
  }

  Shard<T>& shard_;
  Link& link_;
  const int worker_;
  size_t own_ = 0;
  size_t states_ = 0;
  ValueCoder<T> plain_, pushed_, pulled_;
  std::vector<T> gradient_;
  std::vector<T> values_;
};

// The thread of one worker. It records the error that ends the conversation.
template <typename T>
void attend(Store& store, const ServerRendezvous& rendezvous, int shard_index, int worker, Shard<T>& shard) {
  std::unique_ptr<Link> link;
  std::string reason;
  try {
    link = meet_worker(store, rendezvous, shard_index, worker);
    Conversation<T>(shard, *link, worker).run();
  } catch (const std::exception& error) {
    reason = error.what();
  }
  shard.retire(worker, reason.empty() ? nullptr : &reason);
  if (!link) return;
  if (!reason.empty()) link->abort(reason);  // tells the reason to a worker that still lives
  shard.count_bytes(*link);
}

template <typename T>
ServeReport serve(Store& store, const ServerRendezvous& rendezvous, int shard_index,
                  const ServerOptions& options) {
  Shard<T> shard(options, rendezvous);
  {
    std::vector<std::jthread> threads;
    for (int w = 0; w < rendezvous.workers; ++w)
      threads.emplace_back([&, w] { attend(store, rendezvous, shard_index, w, shard); });
  }
  return shard.take_report();
}

}  // namespace

ServeReport serve_shard(Store& store, const ServerRendezvous& rendezvous, int shard,
                        const ServerOptions& options, DataType type) {
  check_server_options(options);
  if (options.workers != rendezvous.workers)
    throw ConfigError("server", fmt::format("{} workers in the options, but {} in the job", options.workers,
                                            rendezvous.workers));
  if (type != DataType::kFp32 && type != DataType::kFp64)
    throw ConfigError("server", fmt::format("a server cannot keep {}; use fp32 or fp64", name_of(type)));
  // Refuses codecs that fp64 does not allow. This happens here, before a worker waits.
  if (type == DataType::kFp64) ValueCoder<double>(options.push_codec, {}, false);
  if (type == DataType::kFp64) ValueCoder<double>(options.pull_codec, {}, false);
  announce_server(store, rendezvous, shard);
  if (type == DataType::kFp64) return serve<double>(store, rendezvous, shard, options);
  return serve<float>(store, rendezvous, shard, options);
}

}  // namespace starling
