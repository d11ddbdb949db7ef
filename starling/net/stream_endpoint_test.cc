// Endpoints and listeners over TCP and Unix sockets; the same tests for both.
#include "starling/net/stream_endpoint.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <future>
#include <numeric>
#include <sstream>
#include <thread>
#include <vector>

#include "starling/base/error.h"
#include "starling/net/frame.h"
#include "starling/net/socket.h"
#include "starling/net/tcp/endpoint.h"
#include "starling/net/tcp/listener.h"
#include "starling/net/unix/endpoint.h"
#include "starling/net/unix/listener.h"
#include "starling/testing/error_of.h"
#include "starling/testing/test_identity.h"

namespace starling {
namespace {

using std::chrono::milliseconds;

Deadline soon() {
  return deadline_in(std::chrono::seconds(60));
}
JobIdentity job() {
  return test_identity("stream-test");
}
template <typename T>
ConstBytes view(const std::vector<T>& v) {
  return std::as_bytes(std::span(v));
}
template <typename T>
Bytes view_mutable(std::vector<T>& v) {
  return std::as_writable_bytes(std::span(v));
}

class Streams : public testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Listener> listen(AdmissionLimits limits = {}) {
    if (GetParam() == "tcp") return tcp_listen("127.0.0.1:0", job(), limits);
    return unix_listen(fmt::format("@starling-test-{}-{}", ::getpid(), fmt::ptr(this)), job(), limits);
  }
  std::unique_ptr<Endpoint> connect(const std::string& address, const JobIdentity& identity) {
    return GetParam() == "tcp" ? tcp_connect(address, identity, soon())
                               : unix_connect(address, identity, soon());
  }
  // A connected socket that has said nothing.
  UniqueFd connect_raw(const std::string& address) { return connect_to(parse_address(address), soon()); }
  std::pair<std::unique_ptr<Endpoint>, std::unique_ptr<Endpoint>> make_pair() {
    auto listener = listen();
    auto client = std::async(std::launch::async, [&] { return connect(listener->address(), job()); });
    auto server = listener->accept(soon());
    return {client.get(), std::move(server)};
  }
};
INSTANTIATE_TEST_SUITE_P(Net, Streams, testing::Values("tcp", "unix"),
                         [](const auto& info) { return info.param; });

TEST_P(Streams, CarriesDataAndControlAndCountsTheBytes) {
  auto [a, b] = make_pair();
  const std::vector<int> head = {1, 2}, body = {3, 4, 5};
  a->send({9, view(head), view(body)}, soon());
  a->send({10, view(head), {}, MessageKind::kControl}, soon());
  a->send({11, {}, {}}, soon());
  EXPECT_EQ(b->peek(soon()).bytes, 20u);
  std::vector<int> all(5), control(2);
  b->recv({9, {}, view_mutable(all)}, soon());
  EXPECT_EQ(all, (std::vector<int>{1, 2, 3, 4, 5}));
  b->recv({10, view_mutable(control), {}, MessageKind::kControl}, soon());
  EXPECT_EQ(control, head);
  EXPECT_EQ(b->peek(soon()).tag, 11u);
  b->recv({11, {}, {}}, soon());
  EXPECT_EQ(a->socket_sent(), 3 * kFrameHeaderBytes + 20 + 8 + kSealBytes);
  EXPECT_EQ(b->socket_received(), a->socket_sent());
}

TEST_P(Streams, OneThreadExchangesMoreThanTheBuffersHold) {
  auto [a, b] = make_pair();
  constexpr size_t kCount = 8 << 20;  // 32 MiB each way
  auto side = [&](Endpoint& endpoint, uint32_t start) {
    std::vector<uint32_t> out(kCount), in(kCount);
    std::iota(out.begin(), out.end(), start);
    endpoint.exchange({1, {}, view(out)}, {1, {}, view_mutable(in)}, soon());
    return in;
  };
  auto other = std::async(std::launch::async, [&, &b = b] { return side(*b, 1000); });
  const std::vector<uint32_t> from_b = side(*a, 5), from_a = other.get();
  EXPECT_EQ(from_b.front(), 1000u);
  EXPECT_EQ(from_b.back(), 1000 + kCount - 1);
  EXPECT_EQ(from_a.front(), 5u);
  EXPECT_EQ(from_a[kCount / 2], 5 + kCount / 2);
}

TEST_P(Streams, TwoThreadsSendAndReceiveAtTheSameTime) {
  auto [a, b] = make_pair();
  constexpr int kMessages = 200;
  auto sender = [](Endpoint& to) {
    for (uint32_t i = 0; i < kMessages; ++i) {
      const std::vector<uint32_t> data(1 + i * 37, i);
      to.send({i, {}, view(data), i % 3 == 0 ? MessageKind::kControl : MessageKind::kData}, soon());
    }
  };
  auto receiver = [](Endpoint& from) {
    for (uint32_t i = 0; i < kMessages; ++i) {
      std::vector<uint32_t> data(1 + i * 37);
      from.recv({i, {}, view_mutable(data), i % 3 == 0 ? MessageKind::kControl : MessageKind::kData}, soon());
      EXPECT_EQ(data.back(), i);
    }
  };
  std::thread threads[] = {std::thread(sender, std::ref(*a)), std::thread(receiver, std::ref(*a)),
                           std::thread(sender, std::ref(*b)), std::thread(receiver, std::ref(*b))};
  for (auto& t : threads) t.join();
  EXPECT_EQ(a->socket_sent(), b->socket_received());
}

TEST_P(Streams, ADifferentMessageNamesBothSides) {
  auto [a, b] = make_pair();
  b->set_peer_rank(4, "node-e");
  const std::vector<int> three(3);
  std::vector<int> four(4);
  a->send({5, {}, view(three)}, soon());
  const std::string error = error_of([&, &b = b] { b->recv({5, {}, view_mutable(four)}, soon()); });
  EXPECT_NE(error.find("rank 4 (node-e) sent a data message of 12 bytes"), std::string::npos) << error;
  EXPECT_NE(error.find("16 bytes with tag 0x5 was due"), std::string::npos) << error;
}

TEST_P(Streams, TheEndOfAPeerIsACommErrorWithItsRank) {
  auto [a, b] = make_pair();
  a->set_peer_rank(2, "node-c");
  b.reset();
  std::vector<int> data(1 << 20);
  try {
    a->recv({1, {}, view_mutable(data)}, soon());
    FAIL() << "nobody sent";
  } catch (const CommError& e) {
    EXPECT_EQ(e.peer(), 2);
    EXPECT_NE(std::string(e.what()).find("rank 2 (node-c): "), std::string::npos) << e.what();
  }
  EXPECT_THROW(for (int i = 0; i < 100; ++i) a->send({1, {}, view(data)}, soon()), CommError);
}

TEST_P(Streams, TimeoutNamesTheLateRankAndShutdownWakes) {
  auto [a, b] = make_pair();
  a->set_peer_rank(1, "node-b");
  std::vector<int> data(1);
  try {
    a->recv({1, {}, view_mutable(data)}, deadline_in(milliseconds(5)));
    FAIL() << "nobody sent";
  } catch (const TimeoutError& e) {
    EXPECT_EQ(e.peer(), 1);
  }
  EXPECT_NE(error_of([&, &a = a] { a->peek(soon()); }).find("was cut off"), std::string::npos);
  std::thread waiter([&b = b] { EXPECT_THROW(b->peek(soon()), CommError); });
  b->shutdown();
  waiter.join();
}

TEST_P(Streams, WrongKeyIsNamedOnBothSides) {
  auto listener = listen();
  const JobIdentity wrong{make_job_key(), job().job_id};
  auto client =
      std::async(std::launch::async, [&] { return error_of([&] { connect(listener->address(), wrong); }); });
  // Handles the wrong peer, then times out and tells.
  std::string server;
  while (server.find("refused") == std::string::npos)
    server = error_of([&] { listener->accept(deadline_in(milliseconds(20))); });
  EXPECT_NE(client.get().find("wrong job key"), std::string::npos);
  EXPECT_NE(server.find("key differs from ours"), std::string::npos) << server;
}

TEST_P(Streams, SilentAndTalkativeStrangersDoNotHoldUpAPeer) {
  auto listener = listen({milliseconds(60'000), 64});
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 5; ++i) silent.push_back(connect_raw(listener->address()));
  const UniqueFd http = connect_raw(listener->address());
  ASSERT_GT(::write(http.get(), "GET / HTTP/1.1\r\n\r\n", 18), 0);
  auto client = std::async(std::launch::async, [&] { return connect(listener->address(), job()); });
  EXPECT_NE(listener->accept(soon()), nullptr);
  EXPECT_NE(client.get(), nullptr);
  const std::string error = error_of([&] { listener->accept(deadline_in(milliseconds(1))); });
  EXPECT_NE(error.find("not a Starling peer"), std::string::npos) << error;
}

TEST_P(Streams, SlowLorisIsDroppedAtItsDeadlineAndTheCapHolds) {
  auto listener = listen({milliseconds(100), 2});
  std::vector<UniqueFd> slow;
  for (int i = 0; i < 5; ++i) {
    slow.push_back(connect_raw(listener->address()));
    ASSERT_EQ(::write(slow.back().get(), "STAR", 4), 4);
  }
  // With a cap of 2, a peer behind five slow ones gets in once those were dropped.
  auto client = std::async(std::launch::async, [&] {
    for (;;) {
      try {
        return connect(listener->address(), job());
      } catch (const CommError&) {
        continue;  // this machine was so busy that our own handshake took too long
      }
    }
  });
  EXPECT_NE(listener->accept(soon()), nullptr);
  EXPECT_NE(client.get(), nullptr);
  // The last slow one may still have its time.
  std::string error;
  while (error.find("refused, the last") == std::string::npos ||
         error.find(" 4 refused") != std::string::npos)
    error = error_of([&] { listener->accept(deadline_in(milliseconds(20))); });
  EXPECT_NE(error.find("no handshake within 100 ms"), std::string::npos) << error;
}

TEST_P(Streams, ShutdownWakesTheListener) {
  auto listener = listen();
  std::thread waiter([&] { EXPECT_THROW(listener->accept(soon()), CommError); });
  listener->shutdown();
  waiter.join();
}

// The local addresses of all listening sockets of this network namespace on `port`, as /proc writes them.
std::vector<std::string> listening_on(uint16_t port) {
  std::vector<std::string> found;
  for (const char* file : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream lines(file);
    std::string line;
    std::getline(lines, line);
    while (std::getline(lines, line)) {
      std::istringstream fields(line);
      std::string slot, local, remote, state;
      fields >> slot >> local >> remote >> state;
      if (state == "0A" && local.ends_with(fmt::format(":{:04X}", port))) found.push_back(local);
    }
  }
  return found;
}

TEST(TcpListener, BindsTheChosenAddressOnly) {
  const auto listener = tcp_listen("127.0.0.1:0", job());
  const uint16_t port = parse_host_port(listener->address()).port;
  EXPECT_EQ(listening_on(port), std::vector<std::string>{fmt::format("0100007F:{:04X}", port)});
  for (const char* every : {"0.0.0.0:0", "[::]:0", "[::ffff:0.0.0.0]:0"})
    EXPECT_NE(error_of([&] { tcp_listen(every, job()); }).find("every interface"), std::string::npos)
        << every;
}

TEST(TcpListener, PortInUseSaysHowToFindTheHolder) {
  const auto listener = tcp_listen("127.0.0.1:0", job());
  const std::string error = error_of([&] { tcp_listen(listener->address(), job()); });
  const uint16_t port = parse_host_port(listener->address()).port;
  EXPECT_NE(error.find(fmt::format("port {} of 127.0.0.1 is in use", port)), std::string::npos) << error;
  EXPECT_NE(error.find(fmt::format("ss -ltnp 'sport = :{}'", port)), std::string::npos) << error;
  EXPECT_NE(error_of([&] { tcp_listen("203.0.113.7:0", job()); }).find("no address of this host"),
            std::string::npos);
}

TEST(TcpListener, RefusedConnectionIsNamed) {
  auto listener = tcp_listen("127.0.0.1:0", job());
  const std::string address = listener->address();
  listener.reset();
  EXPECT_NE(error_of([&] { tcp_connect(address, job(), soon()); }).find(address + ": connection refused"),
            std::string::npos);
}

TEST(UnixListener, PathIsRemovedAndAbstractNameIsRefusedTwice) {
  std::string folder = "/tmp/starling-net-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const std::string path = folder + "/s";
  {
    const auto listener = unix_listen(path, job());
  }
  EXPECT_NE(::access(path.c_str(), F_OK), 0);
  ::rmdir(folder.c_str());
  const std::string name = fmt::format("@starling-twice-{}", ::getpid());
  const auto listener = unix_listen(name, job());
  EXPECT_NE(error_of([&] { unix_listen(name, job()); }).find("in use"), std::string::npos);
}

}  // namespace
}  // namespace starling
