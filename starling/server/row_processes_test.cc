// Tests row tables with workers and servers as processes. What workers read equals a naive simulation, and
// the counted bytes equal the formula.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "starling/base/error.h"
#include "starling/comm/network/tcp_connections.h"
#include "starling/job/job_checkpoint.h"
#include "starling/server/row_arrays.h"
#include "starling/server/row_client.h"
#include "starling/server/row_host.h"
#include "starling/server/row_replay.h"
#include "starling/server/row_serve.h"
#include "starling/testing/forked_ranks.h"

namespace starling {
namespace {

using std::chrono::milliseconds;

constexpr int64_t kClocks = 12;
constexpr int kChanges = 300;
constexpr int kKeys = 40;
constexpr int64_t kProgressKey = 77;  // element w counts the clocks of worker w

struct RowJob {
  int workers = 3;
  int servers = 2;  // 0: every worker hosts a shard
  std::optional<int64_t> staleness = 0;
  bool totals = false;
  bool tcp = false;
  int32_t width = 9;  // small, so that rows become dense and sparse again
  JobIdentity identity{make_job_key(), "rows-test"};

  RowTableOptions options() const {
    RowTableOptions o;
    o.width = width;
    o.workers = workers;
    o.staleness = staleness;
    o.totals = totals;
    return o;
  }
  ServerRendezvous rendezvous() const {
    ServerRendezvous m;
    m.name = "rows";
    m.workers = workers;
    m.servers = servers;
    m.server_timeout = milliseconds(30'000);
    m.group.shared_memory = !tcp;
    m.host_name = "node-a";
    m.connect = tcp_connector("127.0.0.1", identity);
    return m;
  }
};

// EXPECT_ does not work in a forked process: a fault ends the rank with a message.
void require(bool holds, const std::string& what) {
  if (!holds) throw Error(ErrorCode::kInternal, what);
}

// Waits until all workers have come to the same place.
void meet(Store& store, const std::string& place, int worker, int workers) {
  store.put(place + "/" + std::to_string(worker), "");
  for (int w = 0; w < workers; ++w) store.get(place + "/" + std::to_string(w), milliseconds(60'000));
}

// Runs the ranks of a job. `work` gets the rows of a worker.
template <typename T, typename Work>
void run_rows(const RowJob& job, const Work& work) {
  ForkedRanks ranks(job.workers + job.servers, [&](int rank, Store& store) {
    if (rank >= job.workers) {
      const RowServeReport report =
          serve_rows(store, job.rendezvous(), rank - job.workers, job.options(), row_type<T>());
      for (const LostWorker& l : report.lost) require(false, "lost: " + l.reason);
    } else if (job.servers == 0) {
      BasicRowHost<T> host(store, job.rendezvous(), rank, job.options());
      work(host.rows(), rank, store);
      host.finish();
    } else {
      BasicRowClient<T> client(store, job.rendezvous(), rank, job.options());
      work(client, rank, store);
      client.goodbye();
    }
  });
  ranks.wait_all();
}

std::vector<NaiveChange> changes_at(const RowJob& job, int worker, int64_t clock) {
  return changes_of(5, worker, clock, kChanges, kKeys, job.width);
}

template <typename T>
void add_clock(const RowJob& job, NaiveRows<T>& rows, int64_t clock) {
  for (int w = 0; w < job.workers; ++w) {
    for (const NaiveChange& c : changes_at(job, w, clock)) {
      naive_add(rows, c.key, c.index, static_cast<T>(c.change));
      if (job.totals) naive_add(rows, kTotalsKey, c.index, static_cast<T>(c.change));
    }
  }
}

std::vector<int64_t> keys_at(int worker, int64_t clock) {
  std::vector<int64_t> keys = {kTotalsKey};
  for (const NaiveChange& c : changes_of(6, worker, clock, 30, kKeys + 6, 1)) keys.push_back(c.key);
  return keys;  // some of them twice, and some that nobody pushes
}

template <typename T>
void require_equal(const BasicRowBatch<T>& rows, const std::vector<int64_t>& keys,
                   const NaiveRows<T>& expected) {
  require(rows.size() == keys.size(), "a row for each key");
  for (size_t i = 0; i < keys.size(); ++i) {
    const BasicRow<T> row = rows.row(i);
    std::map<int32_t, T> found;
    for (size_t j = 0; j < row.index.size(); ++j) found[row.index[j]] = row.value[j];
    const auto at = expected.find(keys[i]);
    require(row.key == keys[i], "the row of the key");
    require(found == (at == expected.end() ? std::map<int32_t, T>{} : at->second),
            "row " + std::to_string(keys[i]) + " differs");
  }
}

// Bulk synchronous: each pull has exactly the pushes of earlier clocks, whichever worker is fast.
template <typename T>
void expect_equals_replay(const RowJob& job) {
  run_rows<T>(job, [&](BasicRowClient<T>& rows, int worker, Store&) {
    NaiveRows<T> expected;
    BasicRowBatch<T> read;
    for (int64_t c = 0; c < kClocks; ++c) {
      const std::vector<int64_t> keys = keys_at(worker, c), later = keys_at(worker + 50, c);
      const uint64_t first = rows.start_pull(keys);
      push_changes(rows, changes_at(job, worker, c));
      const uint64_t second = rows.start_pull(later);
      rows.clock();
      rows.wait(first, read);
      require_equal(read, keys, expected);
      rows.wait(second, read);
      require_equal(read, later, expected);
      add_clock(job, expected, c);
    }
    require(naive_scan(rows) == expected, "the scan differs");
    require(expected.size() > 20, "there are rows");
    require(rows.max_staleness() == 0, "no staleness");
  });
}

TEST(RowProcesses, SynchronousReadsEqualANaiveSimulation) {
  for (int servers = 1; servers <= 4; ++servers) {
    RowJob job;
    job.servers = servers;
    job.totals = servers % 2 == 0;
    expect_equals_replay<int32_t>(job);
  }
}

TEST(RowProcesses, ShardsInTheWorkersEqualANaiveSimulation) {
  for (int workers = 1; workers <= 4; ++workers) {
    RowJob job;
    job.workers = workers;
    job.servers = 0;
    job.totals = true;
    expect_equals_replay<int32_t>(job);
  }
}

TEST(RowProcesses, OtherTypesAndConnectionsEqualANaiveSimulation) {
  RowJob job;
  job.servers = 0;
  job.tcp = true;
  expect_equals_replay<int64_t>(job);
  expect_equals_replay<float>(job);  // sums of small integers are exact
  job.servers = 1;
  expect_equals_replay<double>(job);
}

// A worker at clock c sees c pushes of its own, and at least c - s and at most c + s + 1 of every other one.
void expect_staleness_bound(const RowJob& job) {
  run_rows<int32_t>(job, [&](RowClient& rows, int worker, Store& store) {
    RowBatch read;
    NaiveRows<int32_t> all;
    const std::vector<int64_t> key = {kProgressKey};
    for (int64_t c = 0; c < kClocks; ++c) {
      rows.pull(key, read);
      std::vector<int32_t> seen(static_cast<size_t>(job.width));
      read.add_to(0, seen);
      require(seen[static_cast<size_t>(worker)] == c, "own pushes");
      for (int w = 0; w < job.workers && job.staleness; ++w) {
        const int32_t pushes = seen[static_cast<size_t>(w)];
        require(pushes >= c - *job.staleness, "too old: worker " + std::to_string(w));
        require(pushes <= c + *job.staleness + 1, "too far ahead: worker " + std::to_string(w));
      }
      const std::vector<int32_t> index = {worker}, one = {1};
      rows.push(std::vector<RowDelta>{{kProgressKey, index, one}});
      push_changes(rows, changes_at(job, worker, c));
      rows.clock();
      add_clock(job, all, c);
    }
    std::vector<int64_t> keys = keys_at(0, 0);
    rows.pull(keys, read);  // the answers come after all pushes of this worker
    meet(store, "pushed", worker, job.workers);
    for (int w = 0; w < job.workers; ++w) naive_add(all, kProgressKey, w, static_cast<int32_t>(kClocks));
    require(naive_scan(rows) == all, "the scan differs");
    require(!job.staleness || rows.max_staleness() <= *job.staleness, "the staleness of the answers");
    meet(store, "read", worker, job.workers);
  });
}

TEST(RowProcesses, StaleReadsKeepTheBoundAndLoseNothing) {
  for (const std::optional<int64_t> staleness : {std::optional<int64_t>(2), std::optional<int64_t>()}) {
    RowJob job;
    job.workers = 4;
    job.staleness = staleness;
    expect_staleness_bound(job);
    job.servers = 0;
    expect_staleness_bound(job);
  }
}

// The keyed rows of a push as maps, by shard.
uint64_t naive_push_bytes(const RowJob& job, int shard, const std::vector<NaiveChange>& changes) {
  uint64_t bytes = 0;
  int64_t previous = 0;
  for (size_t i = 0; i < changes.size();) {
    NaiveRows<int32_t> row;
    const int64_t key = changes[i].key;
    for (; i < changes.size() && changes[i].key == key; ++i)
      naive_add(row, key, changes[i].index, changes[i].change);
    if (row.empty() || shard_of_key(key, job.servers) != shard) continue;
    bytes += naive_vz(key - previous) + naive_row_bytes(row.begin()->second, job.width);
    previous = key;
  }
  return bytes > 0 ? kHeadBytes + bytes : 0;
}

struct PullBytes {
  uint64_t sent = 0, received = 0;
};
PullBytes naive_pull_bytes(const RowJob& job, int shard, const std::vector<int64_t>& keys,
                           const NaiveRows<int32_t>& rows) {
  PullBytes bytes;
  int64_t previous = 0;
  for (const int64_t key : keys) {
    if (shard_of_key(key, job.servers) != shard) continue;
    const auto at = rows.find(key);
    bytes.sent += naive_vz(key - previous);
    bytes.received += at == rows.end() ? 1 : naive_row_bytes(at->second, job.width);
    previous = key;
  }
  return bytes.sent == 0 ? bytes : PullBytes{bytes.sent + kHeadBytes, bytes.received + kHeadBytes};
}

TEST(RowProcesses, CountedBytesEqualTheFormula) {
  RowJob job;
  job.width = 200;
  run_rows<int32_t>(job, [&](RowClient& rows, int worker, Store&) {
    uint64_t sent = static_cast<uint64_t>(job.servers) * (kHeadBytes + 8 * kRowHelloCount);
    uint64_t received = static_cast<uint64_t>(job.servers) * kHeadBytes;
    require(rows.bytes_sent() == sent && rows.bytes_received() == received, "the hello");
    NaiveRows<int32_t> expected;
    RowBatch read;
    for (int64_t c = 0; c < kClocks; ++c) {
      const std::vector<int64_t> keys = keys_at(worker, c);
      rows.pull(keys, read);
      push_changes(rows, changes_at(job, worker, c));
      rows.clock();
      for (int s = 0; s < job.servers; ++s) {
        const PullBytes pull = naive_pull_bytes(job, s, keys, expected);
        sent += pull.sent + naive_push_bytes(job, s, changes_at(job, worker, c)) + kHeadBytes;
        received += pull.received;
      }
      add_clock(job, expected, c);
      require(rows.bytes_sent() == sent,
              "bytes sent " + std::to_string(rows.bytes_sent()) + ", not " + std::to_string(sent));
      require(rows.bytes_received() == received, "bytes received");
    }
  });
}

// Bodies above the length of one message: pushes, pulls and scans are cut.
TEST(RowProcesses, LongRowsAreSentInSeveralMessages) {
  RowJob job;
  job.workers = 2;
  job.width = 1 << 16;
  for (const int servers : {1, 0}) {
    job.servers = servers;
    run_rows<int32_t>(job, [&](RowClient& rows, int, Store&) {
      std::vector<int32_t> dense(static_cast<size_t>(job.width));
      for (size_t i = 0; i < dense.size(); ++i) dense[i] = static_cast<int32_t>(i * i % 100'003) + 1;
      std::vector<RowDelta> deltas;
      std::vector<int64_t> keys;
      for (int64_t k = 0; k < 24; ++k) keys.push_back(k), deltas.push_back({k, {}, dense});
      rows.push(deltas);
      rows.clock();
      RowBatch read;
      rows.pull(keys, read);
      size_t visited = 0, slices = 0;
      for (int s = 0; s < rows.shards(); ++s) {
        rows.scan(s, [&](const RowBatch& slice) { visited += slice.size(), ++slices; });
      }
      require(visited == keys.size(), "all rows are visited once");
      require(servers == 0 || slices > 2, "the scan has slices");
      for (size_t i = 0; i < keys.size(); ++i) {
        const Row row = read.row(i);
        require(row.index.size() == dense.size(), "dense rows");
        for (size_t j = 0; j < dense.size(); ++j) require(row.value[j] == 2 * dense[j], "doubled");
      }
      require(servers == 0 || rows.bytes_sent() > 3 * kRowMessageBytes, "several messages");
    });
  }
}

// A pull is started before the previous one is waited for, over the end of a clock. Answers are longer than
// what a connection holds, so their sender waits for the receiver.
TEST(RowProcesses, LongPullsOverTheEndOfAClockDoNotBlock) {
  RowJob job;
  job.workers = 2;
  job.width = 1 << 16;
  for (const int servers : {2, 0}) {
    job.servers = servers;
    run_rows<int32_t>(job, [&](RowClient& rows, int, Store&) {
      std::vector<int32_t> dense(static_cast<size_t>(job.width));
      for (size_t i = 0; i < dense.size(); ++i) dense[i] = static_cast<int32_t>(i * i % 100'003) + 1;
      const std::vector<int32_t> index = {0}, one = {1};
      std::vector<RowDelta> deltas;
      std::vector<int64_t> keys;
      for (int64_t k = 0; k < 12; ++k) keys.push_back(k), deltas.push_back({k, {}, dense});
      rows.push(deltas);
      rows.clock();
      std::deque<std::pair<uint64_t, int32_t>> started;  // with the clock of each
      RowBatch read;
      const auto wait = [&] {
        rows.wait(started.front().first, read);
        for (size_t i = 0; i < keys.size(); ++i) {
          const Row row = read.row(i);
          require(row.index.size() == dense.size(), "dense rows");
          require(row.value[0] == 2 * dense[0] + 2 * (started.front().second - 1), "the clock of the pull");
          for (size_t j = 1; j < dense.size(); ++j) require(row.value[j] == 2 * dense[j], "doubled");
        }
        started.pop_front();
      };
      for (int32_t c = 1; c < 6; ++c) {
        started.push_back({rows.start_pull(keys), c});
        std::vector<RowDelta> small;
        for (const int64_t k : keys) small.push_back({k, index, one});
        rows.push(small);
        rows.clock();
        if (started.size() == 2) wait();
      }
      wait();
      require(started.empty(), "all pulls are waited for");
    });
  }
}

TEST(RowProcesses, ACheckpointFitsAnotherNumberOfShards) {
  RowJob job;
  job.totals = true;
  job.servers = 0;
  const auto parts = [&](int r) { return "part/" + std::to_string(r); };
  NaiveRows<int32_t> expected;
  for (int64_t c = 0; c < 2; ++c) add_clock(job, expected, c);
  std::vector<std::string> written;
  {
    ForkedRanks ranks(job.workers, [&](int rank, Store& store) {
      RowHost host(store, job.rendezvous(), rank, job.options());
      for (int64_t c = 0; c < 2; ++c) {
        push_changes(host.rows(), changes_at(job, rank, c));
        host.rows().clock();
      }
      CheckpointArrays arrays;
      put_rows(arrays, "topics", read_rows(host.rows(), rank, job.workers));
      require(host.rows().shards() == job.workers, "a shard for each worker");
      store.put(parts(rank), arrays.write(2, rank, job.workers));
      host.finish();
    });
    ranks.wait_all();
    for (int r = 0; r < job.workers; ++r) written.push_back(ranks.store().get(parts(r), milliseconds(1'000)));
  }
  RowJob other = job;
  other.workers = 2;
  for (const int servers : {0, 1, 4}) {
    other.servers = servers;
    run_rows<int32_t>(other, [&](RowClient& rows, int worker, Store&) {
      for (int r = worker; r < job.workers; r += other.workers) {
        const auto part = CheckpointArrays::parse("part", written[static_cast<size_t>(r)], 2, r, job.workers);
        restore_rows(rows, get_rows<int32_t>(part, "topics"));
      }
      rows.clock();
      require(naive_scan(rows) == expected, "the restored rows differ");
    });
  }
}

}  // namespace
}  // namespace starling
