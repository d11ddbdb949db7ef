// A group over two hosts (network namespaces): results, and that the bytes counted are the bytes on the wire.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <cmath>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "starling/base/error.h"
#include "starling/comm/bootstrap.h"
#include "starling/comm/tcp_mesh.h"
#include "starling/net/store_client.h"
#include "starling/net/store_server.h"
#include "starling/testing/forked_ranks.h"
#include "starling/testing/network_namespaces.h"

namespace starling {
namespace {

constexpr const char* kStorePort = ":29511";

// Moves the calling process to a host.
void enter_host(const NetworkNamespaces& hosts, int host) {
  const std::string space = hosts.command(host, {"true"}).at(3);  // ip netns exec NAME true
  const int fd = open(("/var/run/netns/" + space).c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0 || setns(fd, CLONE_NEWNET) != 0) throw CommError("cannot enter the namespace " + space);
}

// Bytes of TCP payload that the host has sent over eth0. Its frames are counted with their headers (14 bytes of Ethernet,
// 20 of IP, 32 of TCP with timestamps), once a frame: how large those are is the kernel's choice (segmentation offload),
// so the headers are taken off; a segment sent twice counts once. From /proc/net/dev, ninth number of the line "eth0: …",
// and RetransSegs of /proc/net/snmp.
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
      numbers_after("/proc/self/net/snmp", "Tcp:", 1);  // the first names the columns
  const double bytes = device.at(8), frames = device.at(9), repeated = tcp.at(11);
  return {bytes - kHeaders * frames - kSegment * repeated,
          fmt::format("{:.0f} bytes, {:.0f} frames, {:.0f} segments repeated", bytes, frames, repeated)};
}

void run_host(const NetworkNamespaces& hosts, int host, const JobIdentity& identity) {
  enter_host(hosts, host);
  const std::string address = hosts.address(0) + kStorePort;
  std::unique_ptr<StoreServer> server;
  if (host == 0) server = std::make_unique<StoreServer>(std::vector<std::string>{address}, identity);
  StoreClient store(address, identity);
  GroupSetup setup;
  setup.rank = host;
  setup.size = 2;
  setup.host_id = setup.host_name = "host-" + std::to_string(host);
  setup.connect = tcp_mesh(hosts.address(host), identity);
  const auto group = make_group(store, setup);
  std::vector<float> data(8 << 20, static_cast<float>(host + 1));
  group->barrier();
  const Wire wire = sent_on_wire();
  const TrafficCount before = group->traffic();
  group->all_reduce(data.data(), data.size(), DataType::kFp32, ReduceOp::kSum);
  const double counted = static_cast<double>(group->traffic().socket_sent - before.socket_sent);
  group->barrier();
  const Wire later = sent_on_wire();
  const double seen = later.payload - wire.payload;
  for (const float x : data) {
    if (x != 3.0f) throw CommError("the sum is wrong");
  }
  // All-reduce among two: N bytes each way.
  const double formula = 4.0 * static_cast<double>(data.size());
  if (std::fabs(counted / formula - 1) > 0.01)
    throw CommError("counted " + std::to_string(counted) + " bytes");
  if (std::fabs(seen / counted - 1) > 0.05)
    throw CommError(fmt::format("counted {:.0f}, payload on the wire {:.0f} (before {}; after {})", counted,
                                seen, wire.text, later.text));
  group->barrier();
  // The store lives on host 0: it stays until host 1 has done with it.
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
