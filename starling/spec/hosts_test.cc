#include "starling/spec/hosts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "starling/testing/error_of.h"

namespace starling {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

std::vector<std::string> texts(const std::vector<HostSlots>& hosts) {
  std::vector<std::string> out;
  out.reserve(hosts.size());
  for (const HostSlots& host : hosts) out.push_back(host.name + " " + std::to_string(host.slots));
  return out;
}

TEST(Hosts, AList) {
  EXPECT_THAT(texts(parse_hosts("a,b:2")), ElementsAre("a 1", "b 2"));
  EXPECT_THAT(texts(parse_hosts("me@10.0.0.1:4,[fe80::1%eth0]:3,fe80::2")),
              ElementsAre("me@10.0.0.1 4", "fe80::1%eth0 3", "fe80::2 1"));
}

TEST(Hosts, WhatIsNoList) {
  for (const char* bad :
       {"", "a,", "a,,b", "a b", "a;reboot", "$(x)", "-oProxyCommand=x", "-v", "-F:2", "[]:2", "[a"})
    EXPECT_THAT(error_of<ConfigError>([&] { parse_hosts(bad); }), HasSubstr("is not a host. Write names"))
        << bad;
  for (const char* bad : {"a:", "a:0", "a:-1", "a:two", "a:2x", "[::1]2", "a:99999999999"})
    EXPECT_THAT(error_of<ConfigError>([&] { parse_hosts(bad); }), HasSubstr("number of ranks. Write host:2"))
        << bad;
  EXPECT_THAT(error_of<ConfigError>([] { parse_hosts("a:2,b,a"); }),
              StartsWith("launch.hosts: host a is named twice"));
  EXPECT_THAT(error_of<ConfigError>([] { parse_hosts("a:2,b,a"); }), HasSubstr("a:3"));
}

TEST(Hosts, AFile) {
  EXPECT_THAT(texts(parse_hostfile("# two\nnode-a slots=2\n\n node-b # one\nnode-c:3\n", "hosts")),
              ElementsAre("node-a 2", "node-b 1", "node-c 3"));
  EXPECT_THAT(error_of<ConfigError>([] { parse_hostfile("a slots=2\nb slot=2\n", "hosts"); }),
              StartsWith("hosts:2: \"slot=2\" is not understood. Write b slots=2"));
  EXPECT_THAT(error_of<ConfigError>([] { parse_hostfile("a\nb\na slots=2\n", "hosts"); }),
              StartsWith("hosts:3: host a"));
  EXPECT_THAT(error_of<ConfigError>([] { parse_hostfile("# none\n", "hosts"); }),
              StartsWith("hosts: names no host"));
}

TEST(Hosts, OfASpec) {
  LaunchSpec spec;
  EXPECT_TRUE(hosts_of(spec).empty());
  spec.hostfile = "/there/is/none";
  EXPECT_THAT(error_of<ConfigError>([&] { hosts_of(spec); }),
              StartsWith("launch.hostfile: cannot read /there/is/none"));
  spec.hostfile = "/";
  EXPECT_THAT(error_of<ConfigError>([&] { hosts_of(spec); }),
              StartsWith("launch.hostfile: cannot read /: Is a directory"));
  spec.hosts = "a";
  EXPECT_THAT(error_of<ConfigError>([&] { hosts_of(spec); }), HasSubstr("both --hosts and --hostfile"));
}

TEST(Hosts, WithoutARankCountThereIsOneASlot) {
  Config config;
  config.spec.launch.hosts = "a:2,b:3";
  count_ranks(config);
  EXPECT_EQ(config.spec.train.ranks, 5);
  apply_set(config, "train.ranks=4");
  count_ranks(config);
  EXPECT_EQ(config.spec.train.ranks, 4);
}

TEST(Hosts, AreFilledInOrder) {
  const std::vector<HostSlots> hosts = parse_hosts("a:2,b:2,c:2");
  EXPECT_THAT(texts(share_out(hosts, 6)), ElementsAre("a 2", "b 2", "c 2"));
  EXPECT_THAT(texts(share_out(hosts, 3)), ElementsAre("a 2", "b 1"));
  EXPECT_THAT(error_of<ConfigError>([&] { share_out(hosts, 7); }),
              StartsWith("launch.hosts: 6 slots on 3 hosts are too few for 7 processes"));
}

}  // namespace
}  // namespace starling
