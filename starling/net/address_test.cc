#include "starling/net/address.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "starling/base/error.h"

namespace starling {
namespace {

TEST(Address, ParsesHostAndPort) {
  EXPECT_EQ(parse_host_port("node-b:4711").host, "node-b");
  EXPECT_EQ(parse_host_port("node-b:4711").port, 4711);
  EXPECT_EQ(parse_host_port("[fe80::1%eth0]:1").host, "fe80::1%eth0");
  for (const char* wrong :
       {"", "node-b", ":1", "node-b:", "node-b:x", "node-b:65536", "node-b:-1", "::1:5", "[::1:5"})
    EXPECT_THROW(parse_host_port(wrong), ConfigError) << wrong;
}

TEST(Address, TextIsWhatIsParsed) {
  for (const char* text : {"127.0.0.1:80", "[::1]:0"}) {
    EXPECT_EQ(resolve(parse_host_port(text)).text(), text);
    EXPECT_EQ(resolve_all(parse_host_port(text)).size(), 1u);
    const HostPort parts = parse_host_port(text);
    EXPECT_EQ(host_port_text(parts.host, parts.port), text);
  }
  EXPECT_EQ(host_port_text("[fe80::1%eth0]", 7), "[fe80::1%eth0]:7");
  EXPECT_EQ(unix_address("@starling").text(), "@starling");
  EXPECT_EQ(unix_address("/run/x").text(), "/run/x");
  EXPECT_THROW(unix_address(""), ConfigError);
  EXPECT_THROW(unix_address("@"), ConfigError);
  EXPECT_THROW(unix_address("/" + std::string(107, 'x')), ConfigError);
}

TEST(Address, KnowsEveryInterfaceAndLoopback) {
  EXPECT_TRUE(resolve({"0.0.0.0", 1}).is_any());
  EXPECT_TRUE(resolve({"::", 1}).is_any());
  EXPECT_TRUE(resolve({"::ffff:0.0.0.0", 1}).is_any());
  EXPECT_FALSE(resolve({"127.0.0.1", 1}).is_any());
  EXPECT_TRUE(resolve({"127.0.0.1", 1}).is_loopback());
  EXPECT_TRUE(resolve({"::1", 1}).is_loopback());
}

TEST(Address, FindsTheInterfaceThatRoutes) {
  const auto interfaces = list_interfaces();
  EXPECT_TRUE(
      std::any_of(interfaces.begin(), interfaces.end(), [](const Interface& i) { return i.loopback; }));
  const SocketAddress from = local_address_towards(resolve({"127.0.0.1", 0}));
  EXPECT_EQ(from.text(), "127.0.0.1:0");
}

TEST(Address, HostIdIsStable) {
  EXPECT_EQ(host_id(), host_id());
  EXPECT_NE(host_id().find(host_name()), std::string::npos);
}

TEST(Address, UnknownHostIsNamed) {
  try {
    resolve({"not a host name", 1});
    FAIL() << "resolved";
  } catch (const CommError& e) {
    EXPECT_NE(std::string(e.what()).find("not a host name"), std::string::npos);
  }
}

}  // namespace
}  // namespace starling
