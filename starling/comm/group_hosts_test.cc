// Tests a group over two hosts (network namespaces): the results, and that the counted bytes are the bytes on
// the wire.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "starling/base/error.h"
#include "starling/comm/bootstrap.h"
#include "starling/comm/network/tcp_connections.h"
#include "starling/net/store/store_client.h"
#include "starling/net/store/store_server.h"
#include "starling/testing/forked_ranks.h"
#include "starling/testing/network_namespaces.h"

namespace starling {
namespace {

constexpr const char* kStorePort = ":29511";

// Wire is the number of bytes of TCP payload that the host has sent over eth0.
//
// /proc/net/dev counts frames with their headers: 14 bytes of Ethernet, 20 of IP, 32 of TCP with timestamps.
// The kernel chooses the sizes of the frames (segmentation offload), so the headers are subtracted. A segment
// that was sent twice counts once. The number of bytes is the ninth number of the line "eth0: …".
// RetransSegs of /proc/net/snmp counts repeated segments.
struct Wire {
  double payload = 0;
  std::string text;
};

std::vector<double> numbers_after(const std::string& path, const std::string& head, int occurrence) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const size_t at = line.find(head);
    if (at == std::string::npos || occurrence-- > 0) continue;
    std::istringstream words(line.substr(at + head.size()));
    return {std::istream_iterator<double>(words), std::istream_iterator<double>()};
  }
  throw CommError("no line " + head + " in " + path);
}

Wire sent_on_wire() {
  constexpr double kHeaders = 66;
  constexpr double kSegment = 1448;
  const std::vector<double> device = numbers_after("/proc/self/net/dev", "eth0:", 0);
  const std::vector<double> tcp =
      numbers_after("/proc/self/net/snmp", "Tcp:", 1);  // the first such line names the columns
  const double bytes = device.at(8), frames = device.at(9), repeated = tcp.at(11);
  return {bytes - kHeaders * frames - kSegment * repeated,
          fmt::format("{:.0f} bytes, {:.0f} frames, {:.0f} segments repeated", bytes, frames, repeated)};
}

void run_host(const NetworkNamespaces& hosts, int host, const JobIdentity& identity) {
  hosts.enter(host);
  const std::string address = hosts.address(0) + kStorePort;
  std::unique_ptr<StoreServer> server;
  if (host == 0) server = std::make_unique<StoreServer>(std::vector<std::string>{address}, identity);
  StoreClient store(address, identity);
  GroupSetup setup;
  setup.rank = host;
  setup.size = 2;
  setup.host_id = setup.host_name = "host-" + std::to_string(host);
  setup.connect = tcp_connector(hosts.address(host), identity);
  const auto group = make_group(store, setup);
  std::vector<float> data(8 << 20, static_cast<float>(host + 1));
  barrier(*group);
  const Wire wire = sent_on_wire();
  const TrafficCount before = group->traffic();
  all_reduce(*group, data.data(), data.size(), DataType::kFp32, ReduceOp::kSum);
  const double counted = static_cast<double>(group->traffic().socket_sent - before.socket_sent);
  barrier(*group);
  const Wire later = sent_on_wire();
  const double seen = later.payload - wire.payload;
  for (const float x : data) {
    if (x != 3.0f) throw CommError("the sum is wrong");
  }
  // An all-reduce among two hosts sends N bytes each way.
  const double formula = 4.0 * static_cast<double>(data.size());
  if (std::fabs(counted / formula - 1) > 0.01)
    throw CommError("counted " + std::to_string(counted) + " bytes");
  if (std::fabs(seen / counted - 1) > 0.05)
    throw CommError(fmt::format("counted {:.0f}, payload on the wire {:.0f} (before {}; after {})", counted,
                                seen, wire.text, later.text));
  barrier(*group);
  // The store lives on host 0. Host 0 stays until host 1 no longer needs the store.
  if (host == 0)
    store.get("done", Milliseconds(10'000));
  else
    store.put("done", "yes");
}

TEST(GroupHosts, CountedBytesAreTheBytesOnTheWire) {
  if (const auto reason = NetworkNamespaces::unavailable(); !reason.empty()) GTEST_SKIP() << reason;
  const NetworkNamespaces hosts(2);
  const JobIdentity identity{make_job_key(), "hosts"};
  ForkedRanks ranks(2, [&](int host, Store&) { run_host(hosts, host, identity); });
  EXPECT_NO_THROW(ranks.wait_all());
}

}  // namespace
}  // namespace starling
