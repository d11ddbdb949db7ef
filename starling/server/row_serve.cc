#include "starling/server/row_serve.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>
#include <set>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "starling/base/error.h"
#include "starling/server/row_message.h"

namespace starling {
namespace {

// The conversation with one worker.
template <typename T>
class RowConversation {
 public:
  // timeout: how long a read waits for the slowest worker.
  RowConversation(RowShard<T>& shard, Link& link, int worker, std::chrono::milliseconds timeout)
      : shard_(shard), link_(link), worker_(worker), timeout_(timeout), width_(shard.options().width) {}

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
  void greet() {
    const ServerMessage hello = link_.recv_head();
    expect(hello, MessageCode::kRowHello, link_.peer());
    expect_count(hello, kRowHelloCount, link_.peer());
    expect_bytes(hello, kRowHelloCount * 8, link_.peer());
    std::vector<uint64_t> body(kRowHelloCount);
    link_.recv_body(writable_bytes_of(body));
    check_row_hello(body, shard_.options(), row_type<T>(), link_.peer());
    link_.send({.code = MessageCode::kWelcome});
  }

  void answer(const ServerMessage& request) {
    switch (request.code) {
      case MessageCode::kRowPush:
        return push(request);
      case MessageCode::kRowPull:
        return pull(request);
      case MessageCode::kRowScan:
        return scan(request);
      case MessageCode::kRowClock:
        expect_count(request, 0, link_.peer());
        expect_bytes(request, 0, link_.peer());
        return shard_.change([&](RowTable<T>& table) { table.end_clock(worker_, request.clock); });
      default:
        throw CommError(fmt::format("{} sent '{}', which is no request to a row table", link_.peer(),
                                    name_of(request.code)));
    }
  }

  void receive(const ServerMessage& request, uint64_t most_bytes) {
    if (request.count > kRowMessageCount) expect_count(request, kRowMessageCount, link_.peer());
    if (request.bytes > most_bytes) expect_bytes(request, most_bytes, link_.peer());
    body_.resize(request.bytes);
    link_.recv_body(body_);
  }

  void push(const ServerMessage& request) {
    receive(request, most_row_bytes<T>(request.count, width_));
    rows_.clear();
    decode_keyed_rows(body_, request.count, width_, link_.peer(), rows_);
    shard_.change([&](RowTable<T>& table) { table.push(worker_, request.clock, rows_); });
  }

  void pull(const ServerMessage& request) {
    receive(request, request.count * varint_bytes(~uint64_t{0}));
    const std::vector<int64_t> keys = decode_row_keys(body_, request.count, link_.peer());
    RowWriter<T> writer(width_, false);
    for (size_t next = 0; next < keys.size();) {
      writer.clear();
      const int64_t staleness =
          shard_.read(worker_, request.clock, timeout_, [&](RowTable<T>& table, int64_t behind) {
            while (next < keys.size() && !writer.full()) writer.append(table.row(keys[next++]));
            return behind;
          });
      send_rows(writer, staleness, next == keys.size());
    }
  }

  void scan(const ServerMessage& request) {
    expect_count(request, 1, link_.peer());
    expect_bytes(request, sizeof(int64_t), link_.peer());
    std::vector<int64_t> from(1);
    link_.recv_body(writable_bytes_of(from));
    RowWriter<T> writer(width_, true);
    bool all = false;
    const int64_t staleness =
        shard_.read(worker_, request.clock, timeout_, [&](RowTable<T>& table, int64_t behind) {
          all = table.for_each_from(from[0], [&](const BasicRow<T>& row) {
            writer.append(row);
            return !writer.full();
          });
          return behind;
        });
    send_rows(writer, staleness, all);
  }

  void send_rows(const RowWriter<T>& writer, int64_t staleness, bool last) {
    link_.send({.code = MessageCode::kRows, .stop = last, .count = writer.count(), .extra = staleness},
               writer.body());
  }

  RowShard<T>& shard_;
  Link& link_;
  const int worker_;
  const std::chrono::milliseconds timeout_;
  const int32_t width_;
  std::vector<std::byte> body_;
  BasicRowBatch<T> rows_;
};

template <typename T>
RowServeReport serve(Store& store, const ServerRendezvous& rendezvous, int shard_index,
                     const RowTableOptions& options) {
  RowShard<T> shard(options);
  std::vector<int> workers;
  for (int w = 0; w < options.workers; ++w) workers.push_back(w);
  return RowServer<T>(store, rendezvous, shard_index, shard, workers).finish();
}

}  // namespace

template <typename T>
struct RowServer<T>::State {
  State(Store& store, const ServerRendezvous& rendezvous, int shard_index, RowShard<T>& shard)
      : store(store), rendezvous(rendezvous), shard_index(shard_index), shard(shard) {
    this->rendezvous.stop = stop.get_token();
  }

  // The thread of one worker. The last worker's leave() adds up what is held, which may overflow.
  void attend(int worker) {
    std::unique_ptr<Link> link;
    try {
      link = meet_worker(store, rendezvous, shard_index, worker);
      open(*link);
      RowConversation<T>(shard, *link, worker, read_timeout()).run();
      shard.change([&](RowTable<T>& table) { table.leave(worker); });
    } catch (const std::exception& error) {
      lose(worker, error.what());
      if (link) link->abort(error.what());  // tells the reason to a worker that still lives
    }
    if (link) close(*link);
  }

  // How long a read waits for the slowest worker. The reader's own wait is longer, so that the reader gets
  // the error that names the slowest worker.
  std::chrono::milliseconds read_timeout() const {
    return std::min<std::chrono::milliseconds>(rendezvous.idle_timeout, rendezvous.group.timeout * 9 / 10);
  }

  // Holds the mutex until the table knows of the loss. So errors that follow from the loss are later in the
  // report.
  void lose(int worker, const std::string& reason) {
    const std::lock_guard lock(mutex);
    report.lost.push_back({worker, reason});
    shard.change([&](RowTable<T>& table) { table.lose(worker, reason); });
  }

  void open(Link& link) {
    const std::lock_guard lock(mutex);
    links.insert(&link);
    if (!aborted.empty()) link.abort(aborted);
  }

  void close(Link& link) {
    const std::lock_guard lock(mutex);
    links.erase(&link);
    report.bytes_sent += link.sent();
    report.bytes_received += link.received();
  }

  Store& store;
  ServerRendezvous rendezvous;
  const int shard_index;
  RowShard<T>& shard;
  std::stop_source stop;
  std::mutex mutex;
  std::set<Link*> links;  // guarded by mutex, like the two below
  std::string aborted;
  RowServeReport report;
  std::vector<std::jthread> threads;
};

template <typename T>
RowServer<T>::RowServer(Store& store, const ServerRendezvous& rendezvous, int shard_index, RowShard<T>& shard,
                        const std::vector<int>& workers)
    : state_(std::make_unique<State>(store, rendezvous, shard_index, shard)) {
  announce_server(store, rendezvous, shard_index);
  for (const int w : workers) state_->threads.emplace_back([state = state_.get(), w] { state->attend(w); });
}

template <typename T>
RowServer<T>::~RowServer() {
  if (!state_->threads.empty()) abort("the server of the rows has ended early");
}

template <typename T>
void RowServer<T>::abort(const std::string& reason) {
  state_->stop.request_stop();
  state_->shard.change([&](RowTable<T>& table) { table.spoil(ErrorCode::kComm, reason); });
  const std::lock_guard lock(state_->mutex);
  state_->aborted = reason;
  for (Link* link : state_->links) link->abort(reason);
}

template <typename T>
RowServeReport RowServer<T>::finish() {
  state_->threads.clear();  // joins them
  RowServeReport report = std::move(state_->report);
  report.stats = state_->shard.change([](RowTable<T>& table) { return table.stats(); });
  return report;
}

RowServeReport serve_rows(Store& store, const ServerRendezvous& rendezvous, int shard,
                          const RowTableOptions& options, DataType type) {
  check_row_options(options, rendezvous.workers);
  switch (type) {
    case DataType::kInt32:
      return serve<int32_t>(store, rendezvous, shard, options);
    case DataType::kInt64:
      return serve<int64_t>(store, rendezvous, shard, options);
    case DataType::kFp32:
      return serve<float>(store, rendezvous, shard, options);
    case DataType::kFp64:
      return serve<double>(store, rendezvous, shard, options);
    default:
      throw ConfigError(
          "rows", fmt::format("a row table cannot keep {}; use int32, int64, fp32 or fp64", name_of(type)));
  }
}

template class RowServer<int32_t>;
template class RowServer<int64_t>;
template class RowServer<float>;
template class RowServer<double>;

}  // namespace starling
