#include "starling/server/row_client.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "starling/base/error.h"
#include "starling/server/row_message.h"
#include "starling/server/row_shard.h"

namespace starling {
namespace {

// Checks the options before a worker waits for a server.
RowTableOptions checked(const RowTableOptions& options, const ServerRendezvous& rendezvous) {
  check_row_options(options, rendezvous.workers);
  return options;
}

// Checks a slice of a scan, whose keys are `from` and more. all: whether the server says that it is the last.
template <typename T>
void check_slice(const BasicRowBatch<T>& rows, int64_t from, bool all, const std::string& peer) {
  for (size_t i = 0; i < rows.size(); ++i) {
    const int64_t key = rows.row(i).key;
    const bool in_order = i == 0 ? key >= from : key > rows.row(i - 1).key;
    if (!in_order)
      throw CommError(fmt::format("{} sent row {} out of order in a scan from row {}", peer, key, from));
  }
  if (!all && rows.row(rows.size() - 1).key == std::numeric_limits<int64_t>::max())
    throw CommError(fmt::format("{} announced more rows after the row with the largest key", peer));
}

}  // namespace

template <typename T>
struct BasicRowClient<T>::State {
  // A pull that has been started.
  struct Pull {
    uint64_t number = 0;
    std::vector<int64_t> keys;
    std::vector<std::vector<size_t>> places;  // by shard: of its keys in `keys`
    bool own_read = false;                    // whether `rows` has the rows of the own shard
    bool received = false;                    // whether `rows` has those of all other shards
    BasicRowBatch<T> rows;
  };
  // A connection to a shard, or none if the shard is in this process.
  struct Server {
    std::unique_ptr<Link> link;
    RowWriter<T> writer;
  };

  State(const ServerRendezvous& rendezvous, int worker, const RowTableOptions& options, RowShard<T>* own)
      : rendezvous(rendezvous),
        worker(worker),
        options(checked(options, rendezvous)),
        own(own),
        total(options.totals ? static_cast<size_t>(options.width) : 0) {}

  bool is_own(size_t shard) const { return own != nullptr && static_cast<int>(shard) == worker; }

  // Calls work(server) and names the server and the request in its errors.
  template <typename Work>
  auto with(size_t shard, const char* what, const Work& work) {
    const int rank = rendezvous.rank_of_server(static_cast<int>(shard));
    const auto where = [&](const CommError& error) {
      return fmt::format("server {} (rank {}) failed worker {} in {} at clock {}: {}", shard, rank, worker,
                         what, clock, error.what());
    };
    try {
      return work(servers[shard]);
    } catch (const TimeoutError& error) {
      throw TimeoutError(where(error), rank);
    } catch (const CommError& error) {
      throw CommError(where(error), rank);
    }
  }

  void send(size_t shard, const char* what, ServerMessage head, std::span<const std::byte> body) {
    head.clock = clock;
    with(shard, what, [&](Server& s) { s.link->send(head, body); });
  }

  void greet(size_t shard) {
    with(shard, "hello", [&](Server& s) {
      const std::vector<uint64_t> body = encode_row_hello(options, row_type<T>());
      s.link->send({.code = MessageCode::kRowHello, .count = body.size()}, bytes_of(body));
      expect(s.link->recv_head(), MessageCode::kWelcome, s.link->peer());
    });
  }

  void send_push(size_t shard) {
    RowWriter<T>& writer = servers[shard].writer;
    send(shard, "row push", {.code = MessageCode::kRowPush, .count = writer.count()}, writer.body());
    writer.clear();
  }

  // Receives the head and the body of an answer.
  ServerMessage receive_rows(Server& s, uint64_t most_rows) {
    const ServerMessage head = s.link->recv_head();
    expect(head, MessageCode::kRows, s.link->peer());
    if (head.count > most_rows) expect_count(head, most_rows, s.link->peer());
    const size_t most = most_row_bytes<T>(head.count, options.width);
    if (head.bytes > most) expect_bytes(head, most, s.link->peer());
    body.resize(head.bytes);
    s.link->recv_body(body);
    staleness = std::max(staleness, head.extra);
    return head;
  }

  void receive_pull(size_t shard, const Pull& pull, BasicRowBatch<T>& out) {
    const std::vector<size_t>& places = pull.places[shard];
    with(shard, "row pull", [&](Server& s) {
      for (size_t done = 0; done < places.size();) {
        const ServerMessage head = receive_rows(s, places.size() - done);
        if (head.count == 0) expect_count(head, places.size() - done, s.link->peer());
        decode_rows_at<T>(body, options.width, s.link->peer(), std::span(places).subspan(done, head.count),
                          pull.keys, out);
        done += head.count;
      }
    });
  }

  // Reads the rows of the own shard that a pull asks for, to places of `out`.
  void read_own(const Pull& pull, BasicRowBatch<T>& out) {
    const std::vector<size_t>& places = pull.places[static_cast<size_t>(worker)];
    if (places.empty()) return;
    own->read(worker, clock, rendezvous.group.timeout, [&](RowTable<T>& table, int64_t behind) {
      staleness = std::max(staleness, behind);
      for (const size_t place : places) copy(table.row(pull.keys[place]), place, out);
    });
  }

  static void copy(const BasicRow<T>& row, size_t place, BasicRowBatch<T>& out) {
    out.begin_row_at(place, row.key);
    for (size_t j = 0; j < row.index.size(); ++j) out.add(row.index[j], row.value[j]);
  }

  // Reads the own shard for the started pulls, before it changes.
  void settle() {
    if (own == nullptr) return;
    for (Pull& pull : pulls) {
      if (pull.own_read) continue;
      pull.rows.reset(pull.keys.size());
      read_own(pull, pull.rows);
      pull.own_read = true;
    }
  }

  void receive_all(const Pull& pull, BasicRowBatch<T>& out) {
    for (size_t s = 0; s < servers.size(); ++s) {
      if (!is_own(s)) receive_pull(s, pull, out);
    }
  }

  // Receives the answers to all started pulls. A server reads the next request of this worker only after it
  // has sent an answer, and a long answer needs a receiver. So an answer that is not received holds back the
  // end of this worker's clock, for which the reads of other workers wait.
  void collect() {
    for (Pull& pull : pulls) {
      if (pull.received) continue;
      if (!pull.own_read) pull.rows.reset(pull.keys.size());
      receive_all(pull, pull.rows);
      pull.received = true;
    }
  }

  // Adds a row with the totals of `batch`.
  void add_totals() {
    std::fill(total.begin(), total.end(), T{0});  // a push that threw has left its sums
    for (size_t i = 0; i < batch.size(); ++i) {
      const BasicRow<T> row = batch.row(i);
      if (row.key == kTotalsKey)
        throw ConfigError("rows", fmt::format("a push to row {}, which holds the totals", kTotalsKey));
      for (size_t j = 0; j < row.index.size(); ++j) {
        T& sum = total[static_cast<size_t>(row.index[j])];
        sum = row_sum(sum, row.value[j], kTotalsKey, row.index[j]);
      }
    }
    append_delta<T>({kTotalsKey, {}, total}, options.width, batch);
  }

  void push(std::span<const BasicRowDelta<T>> deltas, bool totals) {
    batch.clear();
    for (const BasicRowDelta<T>& delta : deltas) append_delta(delta, options.width, batch);
    if (batch.size() == 0) return;
    if (totals) add_totals();
    if (options.staleness != 0) settle();  // at staleness 0, reads of this clock do not see the push
    own_rows.clear();
    for (size_t i = 0; i < batch.size(); ++i) {
      const BasicRow<T> row = batch.row(i);
      const auto shard = static_cast<size_t>(shard_of_key(row.key, static_cast<int>(servers.size())));
      if (is_own(shard)) {
        own_rows.begin_row(row.key);
        copy(row, own_rows.size() - 1, own_rows);
        continue;
      }
      servers[shard].writer.append(row);
      if (servers[shard].writer.full()) send_push(shard);
    }
    for (size_t s = 0; s < servers.size(); ++s) {
      if (servers[s].writer.count() > 0) send_push(s);
    }
    if (own_rows.size() > 0) own->change([&](RowTable<T>& table) { table.push(worker, clock, own_rows); });
  }

  void scan_own(const Visit& visit) {
    BasicRowBatch<T> rows;
    int64_t from = std::numeric_limits<int64_t>::min();
    for (bool all = false; !all;) {
      rows.clear();
      all = own->read(worker, clock, rendezvous.group.timeout, [&](RowTable<T>& table, int64_t) {
        return table.for_each_from(from, [&](const BasicRow<T>& row) {
          rows.begin_row(row.key);
          copy(row, rows.size() - 1, rows);
          return rows.size() < kRowMessageCount && rows.elements() < kRowMessageBytes;
        });
      });
      if (rows.size() == 0) return;
      visit(rows);
      from = rows.row(rows.size() - 1).key + (all ? 0 : 1);
    }
  }

  void scan_server(size_t shard, const Visit& visit) {
    BasicRowBatch<T> rows;
    std::vector<int64_t> from = {std::numeric_limits<int64_t>::min()};
    for (bool all = false; !all;) {
      send(shard, "row scan", {.code = MessageCode::kRowScan, .count = 1}, bytes_of(from));
      rows.clear();
      with(shard, "row scan", [&](Server& s) {
        const ServerMessage head = receive_rows(s, kRowMessageCount);
        decode_keyed_rows(body, head.count, options.width, s.link->peer(), rows);
        all = head.stop || head.count == 0;
        check_slice(rows, from[0], all, s.link->peer());
      });
      if (rows.size() == 0) return;
      visit(rows);
      from[0] = rows.row(rows.size() - 1).key + (all ? 0 : 1);
    }
  }

  const ServerRendezvous rendezvous;
  const int worker;
  const RowTableOptions options;
  RowShard<T>* const own;
  std::vector<Server> servers;
  std::deque<Pull> pulls;  // started and not waited for, in the order of their starts
  uint64_t started = 0;
  int64_t clock = 0;
  int64_t staleness = 0;
  std::vector<T> total;  // the sums of a push, if the table has totals
  BasicRowBatch<T> batch, own_rows;
  std::vector<std::byte> body;
};

template <typename T>
BasicRowClient<T>::BasicRowClient(Store& store, const ServerRendezvous& rendezvous, int worker,
                                  const RowTableOptions& options, RowShard<T>* own)
    : state_(std::make_unique<State>(rendezvous, worker, options, own)) {
  for (int s = 0; s < rendezvous.servers; ++s) {
    state_->servers.push_back({nullptr, RowWriter<T>(options.width, true)});
    if (state_->is_own(static_cast<size_t>(s))) continue;
    state_->servers.back().link = meet_server(store, rendezvous, worker, s);
    state_->greet(static_cast<size_t>(s));
  }
}

template <typename T>
BasicRowClient<T>::BasicRowClient(RowShard<T>& own)
    : state_(std::make_unique<State>(ServerRendezvous{}, 0, own.options(), &own)) {
  state_->servers.push_back({nullptr, RowWriter<T>(own.options().width, true)});
}

template <typename T>
BasicRowClient<T>::~BasicRowClient() = default;

template <typename T>
int32_t BasicRowClient<T>::width() const {
  return state_->options.width;
}

template <typename T>
bool BasicRowClient<T>::totals() const {
  return state_->options.totals;
}

template <typename T>
void BasicRowClient<T>::push(std::span<const BasicRowDelta<T>> deltas) {
  state_->push(deltas, state_->options.totals);
}

template <typename T>
void BasicRowClient<T>::restore(std::span<const BasicRowDelta<T>> rows) {
  state_->push(rows, false);
}

template <typename T>
uint64_t BasicRowClient<T>::start_pull(std::span<const int64_t> keys) {
  State& c = *state_;
  typename State::Pull pull;
  pull.number = ++c.started;
  pull.keys.assign(keys.begin(), keys.end());
  pull.places.resize(c.servers.size());
  for (size_t i = 0; i < keys.size(); ++i)
    pull.places[static_cast<size_t>(shard_of_key(keys[i], shards()))].push_back(i);
  std::vector<int64_t> part;
  for (size_t s = 0; s < c.servers.size(); ++s) {
    if (c.is_own(s)) continue;
    const std::vector<size_t>& places = pull.places[s];
    for (size_t begin = 0; begin < places.size(); begin += kRowMessageCount) {
      part.clear();
      const size_t end = std::min(places.size(), begin + kRowMessageCount);
      for (size_t i = begin; i < end; ++i) part.push_back(keys[places[i]]);
      c.send(s, "row pull", {.code = MessageCode::kRowPull, .count = part.size()}, encode_row_keys(part));
    }
  }
  c.pulls.push_back(std::move(pull));
  return c.started;
}

template <typename T>
void BasicRowClient<T>::wait(uint64_t pull, BasicRowBatch<T>& out) {
  State& c = *state_;
  if (c.pulls.empty() || c.pulls.front().number != pull)
    throw ConfigError("rows", fmt::format("wait() for pull {}; the oldest started pull is {}", pull,
                                          c.pulls.empty() ? 0 : c.pulls.front().number));
  typename State::Pull p = std::move(c.pulls.front());
  c.pulls.pop_front();
  if (p.own_read || p.received) {
    std::swap(out, p.rows);
  } else {
    out.reset(p.keys.size());
    if (c.own != nullptr) c.read_own(p, out);
  }
  if (!p.received) c.receive_all(p, out);
}

template <typename T>
void BasicRowClient<T>::clock() {
  State& c = *state_;
  c.settle();
  for (size_t s = 0; s < c.servers.size(); ++s) {
    if (!c.is_own(s)) c.send(s, "row clock", {.code = MessageCode::kRowClock}, {});
  }
  if (c.own != nullptr) c.own->change([&](RowTable<T>& table) { table.end_clock(c.worker, c.clock); });
  ++c.clock;
  c.collect();
}

template <typename T>
int64_t BasicRowClient<T>::clocks() const {
  return state_->clock;
}

template <typename T>
int BasicRowClient<T>::shards() const {
  return static_cast<int>(state_->servers.size());
}

template <typename T>
void BasicRowClient<T>::scan(int shard, const Visit& visit) {
  State& c = *state_;
  const auto s = static_cast<size_t>(shard);
  if (shard < 0 || s >= c.servers.size())
    throw ConfigError("rows", fmt::format("a scan of shard {}; there are {} shards", shard, shards()));
  if (!c.pulls.empty()) throw ConfigError("rows", "a scan while a pull is started; call wait() first");
  if (c.is_own(s)) return c.scan_own(visit);
  c.scan_server(s, visit);
}

template <typename T>
uint64_t BasicRowClient<T>::bytes_sent() const {
  uint64_t bytes = 0;
  for (const auto& s : state_->servers) bytes += s.link ? s.link->sent() : 0;
  return bytes;
}

template <typename T>
uint64_t BasicRowClient<T>::bytes_received() const {
  uint64_t bytes = 0;
  for (const auto& s : state_->servers) bytes += s.link ? s.link->received() : 0;
  return bytes;
}

template <typename T>
int64_t BasicRowClient<T>::max_staleness() const {
  return state_->staleness;
}

template <typename T>
void BasicRowClient<T>::goodbye() {
  State& c = *state_;
  if (!c.pulls.empty()) throw ConfigError("rows", "goodbye while a pull is started; call wait() first");
  for (size_t s = 0; s < c.servers.size(); ++s) {
    if (!c.is_own(s)) c.send(s, "goodbye", {.code = MessageCode::kGoodbye}, {});
  }
  if (c.own != nullptr) c.own->change([&](RowTable<T>& table) { table.leave(c.worker); });
}

template class BasicRowClient<int32_t>;
template class BasicRowClient<int64_t>;
template class BasicRowClient<float>;
template class BasicRowClient<double>;

}  // namespace starling
