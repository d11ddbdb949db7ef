// Tests servers and workers as processes on a quadratic problem. Their results equal a naive simulation,
// whichever process dies.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "starling/base/error.h"
#include "starling/comm/network/tcp_connections.h"
#include "starling/server/client.h"
#include "starling/server/quadratic_replay.h"
#include "starling/server/serve.h"
#include "starling/testing/forked_ranks.h"

namespace starling {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

constexpr int kWorkers = 4;
constexpr int kServers = 2;
constexpr int64_t kRounds = 20;
constexpr double kLr = 0.1;
const std::vector<size_t> kSizes = {5, 3,
                                    2};  // parameters of x; with gaps between them in the workers' memory
const std::vector<size_t> kOffset = {0, 8, 16};
constexpr size_t kFlat = 24;

struct Job {
  ServerOptions options;
  bool tcp = false;
  bool sharded = false;  // downpour: workers 0 and 2 own the first parameter, 1 and 3 the remaining ones
  int killed_worker = -1;
  int64_t cache = 0;      // the bound for which workers read from their caches; 0: no cache
  bool lockstep = false;  // all workers have pushed clock c before one reads at clock c + 1
  JobIdentity identity{make_job_key(), "server-test"};

  Job() {
    options.workers = kWorkers;
    options.optimizer.momentum = 0.9;
    options.record_events = true;
  }
  ServerRendezvous rendezvous() const {
    ServerRendezvous m;
    m.workers = kWorkers;
    m.servers = kServers;
    m.server_timeout = milliseconds(30'000);  // allows for forked processes on a busy machine
    m.group.shared_memory = !tcp;
    m.host_name = "node-a";
    m.connect = tcp_connector("127.0.0.1", identity);
    return m;
  }
  std::vector<bool> owned(int worker) const {
    if (!sharded) return {true, true, true};
    return worker % 2 == 0 ? std::vector<bool>{true, false, false} : std::vector<bool>{false, true, true};
  }
};

ClientLayout layout_of(std::vector<bool> owned, int64_t cache = 0) {
  ClientLayout layout;
  layout.staleness = cache;
  layout.offset = kOffset;
  layout.owned = std::move(owned);
  return layout;
}

std::string text_of(const void* data, size_t bytes) {
  return {static_cast<const char*>(data), bytes};
}
std::string key(const char* what, int rank) {
  return std::string(what) + "/" + std::to_string(rank);
}
template <typename T>
std::vector<T> get(Store& store, const std::string& name) {
  const std::string text = store.get(name, milliseconds(30'000));
  std::vector<T> out(text.size() / sizeof(T));
  std::memcpy(out.data(), text.data(), out.size() * sizeof(T));
  return out;
}

// Converts between x and flat memory with gaps.
Values flat_of(const Values& x) {
  Values flat(kFlat, 0.0);
  for (size_t p = 0, i = 0; p < kSizes.size(); ++p) {
    for (size_t e = 0; e < kSizes[p]; ++e) flat[kOffset[p] + e] = x[i++];
  }
  return flat;
}
Values x_of(const Values& flat) {
  Values x;
  for (size_t p = 0; p < kSizes.size(); ++p)
    x.insert(x.end(), flat.begin() + kOffset[p], flat.begin() + kOffset[p] + kSizes[p]);
  return x;
}

void train(ServerClient<double>& client, const Job& job, const Quadratic& problem, int worker, Store& store,
           Values& flat) {
  for (int64_t round = 0; round < kRounds; ++round) {
    client.pull(flat.data());
    if (worker == job.killed_worker && round == 5) raise(SIGKILL);
    if (worker == 0 && round == 5) store.put("round 5", "reached");
    const Values gradient = flat_of(problem.gradient(worker, x_of(flat)));
    client.push(gradient.data(), {.lr = kLr, .loss = 1.0});
    if (!job.lockstep) continue;
    client.stats();  // each server has applied this push before it answers
    store.put("applied/" + std::to_string(round) + key("", worker), "");
    for (int w = 0; w < kWorkers; ++w)
      store.get("applied/" + std::to_string(round) + key("", w), milliseconds(30'000));
  }
}

void work(const Job& job, const Quadratic& problem, int worker, Store& store) {
  const ServerRendezvous rendezvous = job.rendezvous();
  ClientLayout layout = layout_of(job.owned(worker), job.cache);
  if (!job.options.lambda.empty()) layout.lambda = job.options.lambda[worker];
  ServerClient<double> client(store, rendezvous, worker, make_partitioning(kSizes, 8, kServers), layout);
  Values flat = flat_of(problem.start());
  if (worker == 0 || (worker == 1 && job.sharded)) {
    client.load(flat.data(), {}, 0);
  } else {
    client.expect_load();
  }
  if (job.sharded) flat.assign(kFlat, 0.0);  // parameters of other workers stay zero
  const uint64_t before = client.bytes_sent() + client.bytes_received();
  const TrafficCount t0 = client.traffic();
  train(client, job, problem, worker, store, flat);
  const TrafficCount t1 = client.traffic();
  const std::vector<uint64_t> bytes = {
      client.bytes_sent() + client.bytes_received() - before,
      kRounds * (client.push_bytes() + client.pull_bytes()),
      t1.window_published - t0.window_published + t1.window_received - t0.window_received,
      t1.socket_sent - t0.socket_sent + t1.socket_received - t0.socket_received,
      client.pulled().bytes,
      client.cached_reads()};
  store.put(key("bytes", worker), text_of(bytes.data(), bytes.size() * 8));
  Values whole(kFlat, 0.0);
  if (worker == 0) {
    client.snapshot_whole([&](int section, const Partition& p, const double* values) {
      if (section == 0) std::copy_n(values, p.count, whole.data() + kOffset[p.parameter] + p.begin);
    });
  } else {
    client.snapshot(whole.data());
  }
  store.put(key("x", worker), text_of(whole.data(), kFlat * 8));
  store.put(key("pushes", worker), text_of(client.pushes().data(), kServers * 8));
  const std::vector<uint64_t> received = client.received_by_shard();
  store.put(key("received", worker), text_of(received.data(), kServers * 8));
  client.goodbye();
}

void serve(const Job& job, int shard, Store& store) {
  const ServeReport report = serve_shard(store, job.rendezvous(), shard, job.options, DataType::kFp64);
  const auto events = encode_events(report.events), stats = encode_stats(report.stats);
  store.put(key("events", shard), text_of(events.data(), events.size() * 8));
  store.put(key("stats", shard), text_of(stats.data(), stats.size() * 8));
  store.put(key("sent", shard), text_of(&report.bytes_sent, 8));
  std::string lost;
  for (const LostWorker& l : report.lost) lost += std::to_string(l.worker) + ": " + l.reason + "\n";
  store.put(key("gone", shard), lost);
}

struct Outcome {
  std::vector<Values> x;  // by worker; empty if the worker was killed
  std::vector<std::vector<ServerTableEvent>> events;
  std::vector<ServerTableStats> stats;
  std::vector<std::string> lost;
  std::vector<std::vector<uint64_t>> bytes, pushes;
  std::vector<uint64_t> sent, received;  // by shard: as the server counts, and as its workers count together
};

Outcome run(const Job& job, const Quadratic& problem) {
  ForkedRanks ranks(kWorkers + kServers, [&](int rank, Store& store) {
    if (rank < kWorkers) return work(job, problem, rank, store);
    serve(job, rank - kWorkers, store);
  });
  Outcome out;
  for (int r = 0; r < kWorkers + kServers; ++r) {
    const int status = ranks.wait(r);
    if (r == job.killed_worker) continue;
    EXPECT_EQ(status, 0) << "rank " << r << ": " << ranks.store().try_get(key("error", r)).value_or("");
  }
  if (testing::Test::HasFailure()) return out;
  Store& store = ranks.store();
  for (int w = 0; w < kWorkers; ++w) {
    const bool killed = w == job.killed_worker;
    out.x.push_back(killed ? Values{} : x_of(get<double>(store, key("x", w))));
    out.bytes.push_back(killed ? std::vector<uint64_t>{} : get<uint64_t>(store, key("bytes", w)));
    out.pushes.push_back(killed ? std::vector<uint64_t>{} : get<uint64_t>(store, key("pushes", w)));
    if (killed) continue;
    const auto received = get<uint64_t>(store, key("received", w));
    out.received.resize(kServers);
    std::transform(received.begin(), received.end(), out.received.begin(), out.received.begin(),
                   std::plus<>());
  }
  for (int s = 0; s < kServers; ++s) {
    out.events.push_back(decode_events(get<int64_t>(store, key("events", s)), "server"));
    out.stats.push_back(decode_stats(get<int64_t>(store, key("stats", s)), "server"));
    out.lost.push_back(store.get(key("gone", s), milliseconds(30'000)));
    out.sent.push_back(get<uint64_t>(store, key("sent", s))[0]);
  }
  return out;
}

double difference(const Values& a, const Values& b) {
  double squares = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    squares += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return std::sqrt(squares / norm);
}

ReplayOptions replay_options(const Job& job) {
  ReplayOptions options;
  options.workers = kWorkers;
  options.rule = job.options.optimizer.name;
  options.lr = kLr;
  options.lambda = job.options.lambda;
  options.weight_by_staleness = job.options.weight_by_staleness;
  options.client_cache = job.cache > 0;
  const Partitioning partitioning = make_partitioning(kSizes, 8, kServers);
  for (const Partition& p : partitioning.partitions)
    options.shard_of.insert(options.shard_of.end(), p.count, p.shard);
  for (int w = 0; w < kWorkers && job.sharded; ++w) {
    options.owned.emplace_back();
    for (size_t p = 0; p < kSizes.size(); ++p)
      options.owned.back().insert(options.owned.back().end(), kSizes[p], job.owned(w)[p]);
  }
  return options;
}

void expect_equals_replay(const Job& job, const Quadratic& problem, const Outcome& out) {
  Replay replay(problem, replay_options(job));
  ASSERT_TRUE(replay.run(out.events));
  EXPECT_LT(difference(out.x[0], replay.x()), 1e-10);
  EXPECT_GT(difference(out.x[0], problem.start()), 1e-3);  // it moved; how far depends on the order of pushes
}

TEST(ServerProcesses, SynchronousEqualsOneProcess) {
  const Job job;
  const Quadratic problem(kWorkers, 10);
  const Outcome out = run(job, problem);
  ASSERT_EQ(out.stats.size(), 2u);
  Values x = problem.start(), velocity(10, 0.0);
  for (int64_t round = 0; round < kRounds; ++round) {
    Values mean(10, 0.0);
    for (int k = 0; k < kWorkers; ++k) {
      const Values g = problem.gradient(k, x);
      for (size_t i = 0; i < 10; ++i) mean[i] += g[i] / kWorkers;
    }
    for (size_t i = 0; i < 10; ++i) {
      velocity[i] = 0.9 * velocity[i] - kLr * mean[i];
      x[i] += velocity[i];
    }
  }
  EXPECT_LT(difference(out.x[0], x), 1e-10);
  for (int k = 1; k < kWorkers; ++k) EXPECT_EQ(out.x[k], out.x[0]) << "worker " << k;
  for (const ServerTableStats& stats : out.stats) {
    EXPECT_EQ(stats.updates, static_cast<uint64_t>(kRounds));
    EXPECT_EQ(stats.requests(), 2u * kRounds * kWorkers);
    EXPECT_EQ(stats.max_staleness, 0);
  }
  for (const auto& bytes : out.bytes) {
    EXPECT_EQ(bytes[1], kRounds * (2 * 10 * 8 + 2 * 3 * kHeadBytes));  // |W| in both directions, six heads
    EXPECT_EQ(bytes[0], bytes[1]);
    EXPECT_EQ(bytes[2], bytes[1]);  // the count of the windows
    EXPECT_EQ(bytes[3], 0u);
  }
  EXPECT_EQ(out.received, out.sent);
  EXPECT_GT(out.sent[0], 0u);
}

TEST(ServerProcesses, StaleSynchronousEqualsAReplayAndKeepsItsBound) {
  Job job;
  job.options.staleness = 2;
  job.options.optimizer.name = "adagrad";
  const Quadratic problem(kWorkers, 10);
  const Outcome out = run(job, problem);
  ASSERT_EQ(out.stats.size(), 2u);
  expect_equals_replay(job, problem, out);
  for (const ServerTableStats& stats : out.stats) {
    EXPECT_LE(stats.max_staleness, 2);
    uint64_t reads = 0;
    for (const auto& [staleness, count] : stats.staleness) reads += count;
    EXPECT_EQ(reads, static_cast<uint64_t>(kWorkers * kRounds));
    EXPECT_EQ(stats.updates, static_cast<uint64_t>(kWorkers * kRounds));
  }
}

// Expects that what a worker reads at clock c, from a server or from its cache, contains all updates of
// clocks below c - s (Ho et al. 2013).
void expect_bound(const std::vector<ServerTableEvent>& log, int64_t staleness) {
  std::vector<int64_t> pushes(kWorkers, 0), complete(kWorkers, 0);
  for (const ServerTableEvent& e : log) {
    const auto w = static_cast<size_t>(e.worker);
    if (e.action == ServerTableAction::kRead) complete[w] = *std::min_element(pushes.begin(), pushes.end());
    if (e.action != ServerTableAction::kPush) continue;
    EXPECT_GE(complete[w], e.clock - staleness) << "worker " << w;
    ++pushes[w];
  }
}

TEST(ServerProcesses, ReadsFromTheClientCacheKeepTheBoundAndEqualAReplay) {
  for (const char* rule : {"sgd", "adagrad"}) {
    Job job;
    job.options.staleness = job.cache = 2;
    job.options.optimizer.name = rule;
    job.options.lambda = {0.4, 0.3, 0.2, 0.1};
    job.options.weight_by_staleness = true;
    const Quadratic problem(kWorkers, 10);
    const Outcome out = run(job, problem);
    ASSERT_EQ(out.stats.size(), 2u);
    expect_equals_replay(job, problem, out);
    for (int s = 0; s < kServers; ++s) {
      expect_bound(out.events[s], 2);
      EXPECT_LE(out.stats[s].max_staleness, 2);
      EXPECT_EQ(out.stats[s].updates, static_cast<uint64_t>(kWorkers * kRounds));
    }
  }
}

// Workers of equal speed ask each server once in s + 1 clocks, instead of at each clock.
TEST(ServerProcesses, TheClientCachePullsOnlyWhatIsTooOld) {
  Job job;
  job.lockstep = true;
  job.options.staleness = job.cache = 3;
  const Quadratic problem(kWorkers, 10);
  const Outcome out = run(job, problem);
  ASSERT_EQ(out.stats.size(), 2u);
  expect_equals_replay(job, problem, out);
  constexpr uint64_t kReads = (kRounds + 3) / 4;
  for (int s = 0; s < kServers; ++s) {
    expect_bound(out.events[s], 3);
    EXPECT_EQ(out.stats[s].reads, kReads * kWorkers);
  }
  for (const auto& bytes : out.bytes) {
    EXPECT_EQ(bytes[4], kReads * 10 * 8);  // bytes of all pulled values; without a cache: 20 times |W|
    EXPECT_EQ(bytes[5], kServers * (kRounds - kReads));
  }
}

TEST(ServerProcesses, AsynchronousOverTcpEqualsAReplay) {
  Job job;
  job.tcp = true;
  job.options.staleness.reset();
  job.options.lambda = {0.4, 0.3, 0.2, 0.1};
  job.options.weight_by_staleness = true;
  const Quadratic problem(kWorkers, 10);
  const Outcome out = run(job, problem);
  ASSERT_EQ(out.stats.size(), 2u);
  expect_equals_replay(job, problem, out);
  for (const auto& bytes : out.bytes) {
    EXPECT_EQ(bytes[0], bytes[1]);
    EXPECT_EQ(bytes[3], bytes[1]);  // the count of the sockets
  }
}

TEST(ServerProcesses, DownpourPushesOnlyWhereARankOwnsParameters) {
  Job job;
  job.sharded = true;
  job.options.staleness.reset();
  job.options.optimizer.name = "adagrad";
  const Quadratic problem(kWorkers, 10);
  const Outcome out = run(job, problem);
  ASSERT_EQ(out.stats.size(), 2u);
  expect_equals_replay(job, problem, out);
  // Shard 0 holds the first parameter, shard 1 the remaining ones.
  for (int w = 0; w < kWorkers; ++w) {
    const std::vector<uint64_t> row = {w % 2 == 0 ? uint64_t{kRounds} : 0,
                                       w % 2 == 0 ? 0 : uint64_t{kRounds}};
    EXPECT_EQ(out.pushes[w], row) << "worker " << w;
    for (int s = 0; s < kServers; ++s) EXPECT_EQ(out.stats[s].pushes[w], row[s]);
  }
}

TEST(ServerProcesses, AKilledWorkerIsRetiredAndTheOthersGoOn) {
  for (const std::optional<int64_t> staleness : {std::optional<int64_t>(0), std::optional<int64_t>(1)}) {
    Job job;
    job.killed_worker = 2;
    job.options.staleness = staleness;
    const Quadratic problem(kWorkers, 10);
    const Outcome out = run(job, problem);
    ASSERT_EQ(out.stats.size(), 2u);
    expect_equals_replay(job, problem, out);
    EXPECT_EQ(out.x[1], out.x[3]);
    for (int s = 0; s < kServers; ++s) {
      EXPECT_EQ(out.stats[s].retired, 1u);
      EXPECT_THAT(out.lost[s], HasSubstr("2: "));
      EXPECT_EQ(out.stats[s].pushes[2], 5u);
    }
  }
}

TEST(ServerProcesses, AKilledServerIsNamedByEveryWorker) {
  Job job;
  job.options.staleness.reset();
  const Quadratic problem(kWorkers, 10);
  ForkedRanks ranks(kWorkers + kServers, [&](int rank, Store& store) {
    if (rank >= kWorkers) return serve(job, rank - kWorkers, store);
    const ServerRendezvous rendezvous = job.rendezvous();
    ServerClient<double> client(store, rendezvous, rank, make_partitioning(kSizes, 8, kServers),
                                layout_of({}));
    Values flat = flat_of(problem.start());
    if (rank == 0) client.load(flat.data(), {}, 0);
    store.put(key("met", rank), "both servers");
    try {
      for (;;) train(client, job, problem, rank, store, flat);
    } catch (const CommError& error) {
      store.put(key("fault", rank), std::to_string(error.peer()) + " " + error.what());
    }
  });
  ranks.store().get("round 5", milliseconds(30'000));
  for (int w = 0; w < kWorkers; ++w)
    ranks.store().get(key("met", w), milliseconds(30'000));  // asynchronous: not by then
  ranks.signal(kWorkers + 1, SIGKILL);
  for (int w = 0; w < kWorkers; ++w) {
    // The time is far less than the timeout of 60 s, because the process is detected as dead.
    const std::string fault = ranks.store().get(key("fault", w), milliseconds(10'000));
    EXPECT_THAT(fault, HasSubstr("5 server 1 (rank 5) failed worker " + std::to_string(w)));
    EXPECT_THAT(fault, HasSubstr("lost"));
  }
  EXPECT_THAT(ranks.store().get("gone/0", milliseconds(30'000)), HasSubstr("3: "));  // server 0 ends, too
}

}  // namespace
}  // namespace starling
