// Tests which ranks are connected when an attacker on the path swaps the destinations of connections.
#include "starling/comm/network/tcp_connections.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "starling/base/error.h"
#include "starling/net/address.h"
#include "starling/testing/error_of.h"
#include "starling/testing/forked_ranks.h"
#include "starling/testing/network_namespaces.h"
#include "starling/testing/test_identity.h"

namespace starling {
namespace {

using namespace std::chrono_literals;

constexpr int kRanks = 3;

// Connects three ranks, which are threads. Rank 2 connects to rank `swap[r]` when it calls rank r. Returns
// the error of each rank, which is empty if the rank has all its connections.
std::array<std::string, kRanks> connect_with_swap(const std::array<int, 2>& swap, const std::string& group_2,
                                                  std::chrono::seconds within) {
  std::array<std::promise<std::string>, kRanks> addresses;
  std::array<std::shared_future<std::string>, kRanks> known;
  for (int r = 0; r < kRanks; ++r) known[r] = addresses[r].get_future().share();
  std::array<std::string, kRanks> errors;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&, rank] {
      ConnectionSetup setup;
      setup.rank = rank;
      setup.group = rank == 2 ? group_2 : "comm/0/world/";
      setup.host_names = {"node-a", "node-b", "node-c"};
      setup.remote = {rank != 0, rank != 1, rank != 2};
      setup.deadline = deadline_in(within);
      setup.publish = [&, rank](const std::string& address) { addresses[rank].set_value(address); };
      setup.addresses = [&, rank] {
        std::vector<std::string> all;
        for (int peer = 0; peer < kRanks; ++peer)
          all.push_back(known[rank == 2 && peer < 2 ? swap[peer] : peer].get());
        return all;
      };
      errors[rank] = error_of([&] { (void)tcp_connector("127.0.0.1", test_identity("swap"))(setup); });
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return errors;
}

// Returns whether the error says that one of the ranks 0 and 1 was called and the other was reached. A rank
// calls several peers at a time, so either call may fail first.
bool names_a_swap(const std::string& error) {
  const auto says = [&](const char* called, const char* reached) {
    return error.find(called) != std::string::npos && error.find(reached) != std::string::npos;
  };
  return says("called rank 0 of", "reached rank 1 of") || says("called rank 1 of", "reached rank 0 of");
}

TEST(TcpConnections, WhoIsCalledAnswers) {
  for (const std::string& error : connect_with_swap({0, 1}, "comm/0/world/", 30s)) EXPECT_EQ(error, "");
}

TEST(TcpConnections, ASwapOfTwoDestinationsIsRefused) {
  const auto errors = connect_with_swap({1, 0}, "comm/0/world/", 5s);
  EXPECT_TRUE(names_a_swap(errors[2])) << errors[2];
  for (const int r : {0, 1}) EXPECT_NE(errors[r].find("rank 2 (node-c) did not connect"), std::string::npos);
  // Rank 2 ends both calls when the first fails, so only one of the two listeners need have seen the claim.
  EXPECT_TRUE(errors[1].find("called rank 0") != std::string::npos ||
              errors[0].find("called rank 1") != std::string::npos)
      << errors[0] << '\n'
      << errors[1];
}

// Returns an empty string if a host of `hosts` can translate addresses, otherwise the reason for a skip.
std::string no_translation(const NetworkNamespaces& hosts) {
  const auto words = hosts.command(
      0, {"nft", "'add table ip probe; add chain ip probe c { type nat hook output priority -100; }'"});
  std::string line;
  for (const std::string& word : words) line += word + " ";
  return std::system((line + "2>/dev/null").c_str()) == 0 ? "" : "nft cannot translate addresses here";
}

// Makes the network of this namespace lead connections to `from` to the address `to`.
void redirect(const std::string& from, const std::string& to) {
  const auto [host, port] = parse_host_port(from);
  const std::string command = fmt::format(
      "nft 'add table ip swap; add chain ip swap out {{ type nat hook output priority -100; }}; "
      "add rule ip swap out ip daddr {} tcp dport {} dnat to {}'",
      host, port, to);
  if (std::system(command.c_str()) != 0) throw CommError(command);
}

// An attacker on the path of rank 2 swaps the destinations of its connections to ranks 0 and 1.
TEST(TcpConnections, ASwapByTheNetworkIsRefused) {
  if (const auto reason = NetworkNamespaces::unavailable(); !reason.empty()) GTEST_SKIP() << reason;
  const NetworkNamespaces hosts(kRanks);
  if (const auto reason = no_translation(hosts); !reason.empty()) GTEST_SKIP() << reason;
  const JobIdentity identity = test_identity("swap");
  constexpr Milliseconds kWait{60'000};
  for (const bool swaps : {false, true}) {
    ForkedRanks ranks(kRanks, [&](int rank, Store& test) {
      hosts.enter(rank);
      ConnectionSetup setup;
      setup.rank = rank;
      setup.group = "comm/0/world/";
      setup.host_names = {"node-a", "node-b", "node-c"};
      setup.remote = {rank != 0, rank != 1, rank != 2};
      setup.deadline = deadline_in(std::chrono::seconds(swaps ? 10 : 30));
      setup.publish = [&](const std::string& address) { test.put(fmt::format("address/{}", rank), address); };
      setup.addresses = [&] {
        std::vector<std::string> all;
        for (int peer = 0; peer < kRanks; ++peer)
          all.push_back(test.get(fmt::format("address/{}", peer), kWait));
        if (swaps && rank == 2) {
          redirect(all[0], all[1]);
          redirect(all[1], all[0]);
        }
        return all;
      };
      const std::string error = error_of([&] { (void)tcp_connector(hosts.address(rank), identity)(setup); });
      test.put(fmt::format("said/{}", rank), error.empty() ? "none" : error);
      for (int r = 0; r < kRanks; ++r) test.get(fmt::format("said/{}", r), kWait);
    });
    std::array<std::string, kRanks> errors;
    for (int r = 0; r < kRanks; ++r) errors[r] = ranks.store().get(fmt::format("said/{}", r), kWait);
    ranks.wait_all();
    if (!swaps) {
      for (const std::string& error : errors) EXPECT_EQ(error, "none");
      continue;
    }
    EXPECT_TRUE(names_a_swap(errors[2])) << errors[2];
    for (const int r : {0, 1}) EXPECT_NE(errors[r].find("did not connect"), std::string::npos) << errors[r];
  }
}

TEST(TcpConnections, ARankOfAnEarlierGenerationIsRefused) {
  const auto errors = connect_with_swap({0, 1}, "comm/7/world/", 5s);
  EXPECT_NE(errors[2].find("comm/0/world/"), std::string::npos) << errors[2];
  EXPECT_NE(errors[2].find("comm/7/world/"), std::string::npos) << errors[2];
}

}  // namespace
}  // namespace starling
