// Tests what ranks on several hosts (network namespaces) say and do when the cable of a host is cut while
// data is in flight.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "starling/base/error.h"
#include "starling/base/unique_fd.h"
#include "starling/comm/bootstrap.h"
#include "starling/comm/membership.h"
#include "starling/comm/network/tcp_connections.h"
#include "starling/net/store/store_client.h"
#include "starling/net/store/store_server.h"
#include "starling/testing/forked_ranks.h"
#include "starling/testing/network_namespaces.h"

namespace starling {
namespace {

using std::chrono::milliseconds;

constexpr int kHosts = 3;
constexpr milliseconds kGroupTimeout{120'000};
constexpr milliseconds kAllWaits{60'000};
constexpr size_t kCount = 1 << 20;
constexpr size_t kPart = kCount / kHosts;
constexpr DataType kType = DataType::kFp32;

// LostStore is a store that is gone after lose(). A client of a store whose host is cut finds out after some
// time, but LostStore fails at once.
class LostStore final : public Store {
 public:
  explicit LostStore(Store& store) : store_(store) {}
  void lose() { lost_ = true; }

  void put(const std::string& key, const std::string& value) override { at().put(key, value); }
  std::string put_if_absent(const std::string& key, const std::string& value) override {
    return at().put_if_absent(key, value);
  }
  std::string get(const std::string& key, Milliseconds timeout) override { return at().get(key, timeout); }
  std::optional<std::string> try_get(const std::string& key) override { return at().try_get(key); }
  std::vector<std::string> gather(const std::string& prefix, int count, Milliseconds timeout) override {
    return at().gather(prefix, count, timeout);
  }
  std::map<std::string, std::string> list(const std::string& prefix) override { return at().list(prefix); }
  int64_t add(const std::string& key, int64_t delta) override { return at().add(key, delta); }
  void put_fd(const std::string& key, int fd, int readers) override { at().put_fd(key, fd, readers); }
  UniqueFd get_fd(const std::string& key, Milliseconds timeout) override { return at().get_fd(key, timeout); }
  void erase(const std::string& prefix) override { at().erase(prefix); }
  std::string address() const override { return store_.address(); }

 private:
  Store& at() {
    if (lost_) throw CommError("the store is lost");
    return store_;
  }

  Store& store_;
  std::atomic<bool> lost_{false};
};

// Traffic is a collective or an exchange of messages that the test repeats.
struct Traffic {
  const char* name;
  std::function<void(Group&, std::vector<float>&, std::vector<float>&)> once;
};

std::vector<Traffic> all_traffic() {
  using Values = std::vector<float>;
  return {
      {"barrier", [](Group& g, Values&, Values&) { barrier(g); }},
      {"broadcast", [](Group& g, Values& a, Values&) { broadcast(g, a.data(), kCount, kType, 1); }},
      {"all-reduce",
       [](Group& g, Values& a, Values&) { all_reduce(g, a.data(), kCount, kType, ReduceOp::kMax); }},
      {"reduce-scatter",
       [](Group& g, Values& a, Values& b) {
         reduce_scatter(g, a.data(), b.data(), kPart, kType, ReduceOp::kMax);
       }},
      {"all-gather", [](Group& g, Values& a, Values& b) { all_gather(g, a.data(), b.data(), kPart, kType); }},
      {"all-to-all",
       [](Group& g, Values& a, Values& b) {
         const std::vector<size_t> parts(kHosts, kPart);
         all_to_all(g, a.data(), parts, b.data(), parts, kType);
       }},
      {"messages",
       [](Group& g, Values& a, Values& b) {
         for (int peer = 0; peer < kHosts; ++peer)
           if (peer != g.rank()) send(g, a.data(), 4 * kCount, peer, 3);
         for (int peer = 0; peer < kHosts; ++peer)
           if (peer != g.rank()) recv(g, b.data(), 4 * kCount, peer, 3);
       }},
  };
}

std::string store_address(const NetworkNamespaces& hosts, int job) {
  return fmt::format("{}:{}", hosts.address(0), 29'520 + job);
}

GroupSetup setup_on(const NetworkNamespaces& hosts, int host, const JobIdentity& identity) {
  GroupSetup setup;
  setup.rank = host;
  setup.size = kHosts;
  setup.host_id = setup.host_name = fmt::format("host-{}", host);
  setup.options.timeout = kGroupTimeout;
  setup.connect = tcp_connector(hosts.address(host), identity);
  return setup;
}

// Runs one kind of traffic on one host until it fails. The ranks have not announced themselves in the store,
// so that only their connections tell of a cut. Puts the culprit and the message under "fault/<process>".
void run_until_cut(const NetworkNamespaces& hosts, int process, const Traffic& traffic,
                   const JobIdentity& identity, bool without_store, Store& test) {
  const int host = process % kHosts, job = process / kHosts;
  hosts.enter(host);
  // The kernel must not give up by itself while data is in flight. Only Endpoint::check_alive() then finds
  // the cut.
  std::ofstream("/proc/sys/net/ipv4/tcp_retries2") << 255 << std::flush;
  std::unique_ptr<StoreServer> server;
  if (host == 0)
    server = std::make_unique<StoreServer>(std::vector<std::string>{store_address(hosts, job)}, identity);
  StoreClient client(store_address(hosts, job), identity);
  LostStore store(client);
  const auto group = make_group(store, setup_on(hosts, host, identity));
  if (without_store) store.lose();
  std::vector<float> a(kCount, 1.0f), b(kCount);
  for (int i = 0;; ++i) {
    try {
      traffic.once(*group, a, b);
    } catch (const CommError& error) {
      test.put(fmt::format("fault/{}", process), fmt::format("{} {}", error.peer(), error.what()));
      test.get("over", kAllWaits);
      _exit(0);  // the connections are cut, so that an end in order would take long
    }
    if (i == 3) test.put(fmt::format("ready/{}", process), "yes");
  }
}

// Cuts the cable of `victim` while all kinds of traffic run at the same time. The other ranks must name the
// victim long before the timeout of the group. `without_store`: no rank can reach the store any more.
void expect_named(int victim, bool without_store) {
  if (const auto reason = NetworkNamespaces::unavailable(); !reason.empty()) GTEST_SKIP() << reason;
  NetworkNamespaces hosts(kHosts);
  hosts.limit_rate(400);  // so slow that data is in flight most of the time
  const JobIdentity identity{make_job_key(), "cut"};
  const std::vector<Traffic> traffic = all_traffic();
  const int processes = static_cast<int>(traffic.size()) * kHosts;
  ForkedRanks ranks(processes, [&](int process, Store& test) {
    run_until_cut(hosts, process, traffic[static_cast<size_t>(process / kHosts)], identity, without_store,
                  test);
  });
  for (int p = 0; p < processes; ++p) ranks.store().get(fmt::format("ready/{}", p), kAllWaits);
  hosts.unplug(victim);
  const auto cut = std::chrono::steady_clock::now();
  for (int p = 0; p < processes; ++p) {
    if (p % kHosts == victim) continue;
    const char* name = traffic[static_cast<size_t>(p / kHosts)].name;
    const std::string said = ranks.store().get(fmt::format("fault/{}", p), kAllWaits);
    EXPECT_THAT(said, testing::StartsWith(fmt::format("{} ", victim))) << name;
    EXPECT_THAT(said, testing::HasSubstr(fmt::format("host-{}", victim))) << name;
  }
  const auto took = std::chrono::duration<double>(std::chrono::steady_clock::now() - cut).count();
  std::printf("the last of %d ranks named the cut host after %.1f s\n", processes, took);
  ranks.store().put("over", "yes");
}

TEST(GroupPartition, ACutHostIsNamedInEveryCollective) {
  expect_named(2, false);
}

TEST(GroupPartition, ACutHostThatServesTheStoreIsNamedInEveryCollective) {
  expect_named(0, false);
}

// The failed ranks end connections on which half a message has been sent, and their peers find no notes.
TEST(GroupPartition, ACutHostIsNamedInEveryCollectiveWithoutAStore) {
  expect_named(2, true);
}

// Does what training does to a group: reduces until a fault, agrees on the membership, and continues. Each
// rank puts how it ended under "end/<host>".
void continue_on_one_side(const NetworkNamespaces& hosts, int host, int ranks, const JobIdentity& identity,
                          bool majority, Store& test) {
  hosts.enter(host);
  std::unique_ptr<StoreServer> server;
  if (host == 0)
    server = std::make_unique<StoreServer>(std::vector<std::string>{store_address(hosts, 0)}, identity);
  StoreClient store(store_address(hosts, 0), identity);
  store.announce(host);
  Membership membership = full_membership(ranks);
  std::vector<float> data(kCount, 1.0f);
  std::string end;
  try {
    GroupSetup setup = setup_on(hosts, host, identity);
    setup.size = ranks;
    const auto group = make_group(store, setup);
    all_reduce(*group, data.data(), data.size(), DataType::kFp32, ReduceOp::kMax);
    test.put(fmt::format("ready/{}", host), "yes");
    for (;;) all_reduce(*group, data.data(), data.size(), DataType::kFp32, ReduceOp::kMax);
  } catch (const CommError&) {
    try {
      membership = agree_on_membership(store, host, membership,
                                       {.patience = milliseconds(10'000), .majority = majority});
      end = fmt::format("{} continue", membership.ranks.size());
    } catch (const Error& error) {
      end = error.what();
    }
  }
  test.put(fmt::format("end/{}", host), end);
  test.get("over", kAllWaits);
  _exit(0);
}

// Returns how each rank ended after the cable of the last `cut` hosts is cut.
std::vector<std::string> ends_after_cut(int count, int cut, bool majority) {
  const JobIdentity identity{make_job_key(), "sides"};
  NetworkNamespaces hosts(count);
  ForkedRanks ranks(count, [&](int host, Store& test) {
    continue_on_one_side(hosts, host, count, identity, majority, test);
  });
  for (int r = 0; r < count; ++r) ranks.store().get(fmt::format("ready/{}", r), kAllWaits);
  for (int r = count - cut; r < count; ++r) hosts.unplug(r);
  std::vector<std::string> ends;
  ends.reserve(static_cast<size_t>(count));
  for (int r = 0; r < count; ++r) ends.push_back(ranks.store().get(fmt::format("end/{}", r), kAllWaits));
  ranks.store().put("over", "yes");
  return ends;
}

TEST(GroupPartition, OneSideContinues) {
  if (const auto reason = NetworkNamespaces::unavailable(); !reason.empty()) GTEST_SKIP() << reason;
  const auto ends = ends_after_cut(3, 1, true);
  EXPECT_EQ(ends[0], "2 continue");
  EXPECT_EQ(ends[1], "2 continue");
  EXPECT_THAT(ends[2], testing::HasSubstr("the host or the network to it is down"));
}

TEST(GroupPartition, OfTwoHostsTheSideOfTheStoreContinues) {
  if (const auto reason = NetworkNamespaces::unavailable(); !reason.empty()) GTEST_SKIP() << reason;
  const auto ends = ends_after_cut(2, 1, true);
  EXPECT_EQ(ends[0], "1 continue");
  EXPECT_THAT(ends[1], testing::HasSubstr("the host or the network to it is down"));
}

TEST(GroupPartition, AMinorityContinuesOnlyIfItIsTold) {
  if (const auto reason = NetworkNamespaces::unavailable(); !reason.empty()) GTEST_SKIP() << reason;
  EXPECT_THAT(ends_after_cut(3, 2, true)[0], testing::HasSubstr("of 3 ranks, 1 are present (rank 0)"));
  EXPECT_EQ(ends_after_cut(3, 2, false)[0], "1 continue");
}

}  // namespace
}  // namespace starling
