// Tests endpoints and listeners over TCP and Unix sockets. Both run the same tests.
#include "starling/net/stream/stream_endpoint.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <future>
#include <numeric>
#include <sstream>
#include <thread>
#include <vector>

#include "starling/base/error.h"
#include "starling/net/stream/frame.h"
#include "starling/net/stream/socket.h"
#include "starling/net/stream/stream_listener.h"
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
    if (GetParam() == "tcp") return tcp_listen("127.0.0.1:0", job(), test_parties(), limits);
    return unix_listen(fmt::format("@starling-test-{}-{}", ::getpid(), fmt::ptr(this)), job(), test_parties(),
                       limits);
  }
  std::unique_ptr<Endpoint> connect(const std::string& address, const JobIdentity& identity) {
    return GetParam() == "tcp" ? tcp_connect(address, identity, test_parties(), soon())
                               : unix_connect(address, identity, test_parties(), soon());
  }
  // Returns a connected socket that has sent nothing.
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

TEST(StreamSockets, ANameWithSeveralAddressesIsTriedAddressByAddress) {
  const auto closed = [] {
    const UniqueFd fd = listen_at(parse_address("127.0.0.1:0"));
    return local_address(fd.get());
  }();
  const UniqueFd listener = listen_at(parse_address("127.0.0.1:0"));
  const SocketAddress open = local_address(listener.get());
  const std::vector<SocketAddress> both = {closed, open};
  EXPECT_EQ(remote_address(connect_to_any(both, soon()).get()).text(), open.text());
  const std::vector<SocketAddress> none = {closed, closed};
  const std::string error = error_of([&] { connect_to_any(none, soon()); });
  EXPECT_EQ(error,
            fmt::format("{0}: connection refused: nobody listens there; {0}: connection refused: nobody "
                        "listens there",
                        closed.text()));
  // 192.0.2.0/24 belongs to no host.
  const std::vector<SocketAddress> own = {parse_address("192.0.2.1:0"), parse_address("127.0.0.1:0")};
  EXPECT_EQ(local_address(listen_at_any(own).get()).host(), "127.0.0.1");
}

TEST(StreamSockets, ALackOfDescriptorsDoesNotEndAccept) {
  const auto listener = tcp_listen("127.0.0.1:0", job(), test_parties());
  // UBSan opens a pipe when it first meets an object of a class, and remembers the class. So both classes of
  // errors are thrown and read once while descriptors are free.
  EXPECT_NE(error_of<TimeoutError>([&] { listener->accept(deadline_in(milliseconds(1))); }), "");
  EXPECT_NE(error_of<CommError>([&] { accept_from(-1); }), "");
  UniqueFd raw = connect_to(parse_address(listener->address()), soon());  // it waits in the kernel's queue
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  none.rlim_cur = 3;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const std::string refused =
      error_of<TimeoutError>([&] { listener->accept(deadline_in(milliseconds(300))); });
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_NE(refused.find("ulimit -n"), std::string::npos) << refused;
  auto client = std::async(std::launch::async, [&] {
    greet(raw.get(), job(), test_parties(), "the listener", soon());
    return true;
  });
  EXPECT_NE(listener->accept(soon()), nullptr);
  EXPECT_TRUE(client.get());
}

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
  constexpr size_t kCount = 8 << 20;  // 32 MiB in each direction
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

// The tag and the kind count even if the length is right.
TEST_P(Streams, AMessageOfAnotherTagOrKindIsRefused) {
  const std::vector<int> sent(3);
  std::vector<int> got(3);
  auto [a, b] = make_pair();
  a->send({5, {}, view(sent)}, soon());
  const std::string tag = error_of([&, &b = b] { b->recv({6, {}, view_mutable(got)}, soon()); });
  EXPECT_NE(tag.find("12 bytes with tag 0x6 was due"), std::string::npos) << tag;
  auto [c, d] = make_pair();
  c->send({5, {}, view(sent), MessageKind::kControl}, soon());
  const std::string kind = error_of([&, &d = d] { d->recv({5, {}, view_mutable(got)}, soon()); });
  EXPECT_NE(kind.find("sent a control message"), std::string::npos) << kind;
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
  EXPECT_NE(error_of([&, &a = a] { a->peek(soon()); }).find("the connection is unusable"), std::string::npos);
  std::thread waiter([&b = b] { EXPECT_THROW(b->peek(soon()), CommError); });
  b->shutdown();
  waiter.join();
}

TEST_P(Streams, WrongKeyIsNamedOnBothSides) {
  auto listener = listen();
  const JobIdentity wrong{make_job_key(), job().job_id};
  auto client =
      std::async(std::launch::async, [&] { return error_of([&] { connect(listener->address(), wrong); }); });
  // The listener refuses the wrong peer, then times out and reports it.
  std::string server;
  while (server.find("refused") == std::string::npos)
    server = error_of([&] { listener->accept(deadline_in(milliseconds(20))); });
  EXPECT_NE(client.get().find("wrong job key"), std::string::npos);
  EXPECT_NE(server.find("wrong job key"), std::string::npos) << server;
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
  // With a cap of 2, a peer behind five slow peers is admitted once those were dropped.
  auto client = std::async(std::launch::async, [&] {
    for (;;) {
      try {
        return connect(listener->address(), job());
      } catch (const CommError&) {
        continue;  // the machine was so busy that this client's own handshake took too long
      }
    }
  });
  EXPECT_NE(listener->accept(soon()), nullptr);
  EXPECT_NE(client.get(), nullptr);
  // The last slow peer may still have time left.
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

// Returns the local addresses of all sockets of this network namespace that listen on `port`, as /proc writes
// them.
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
  const auto listener = tcp_listen("127.0.0.1:0", job(), test_parties());
  const uint16_t port = parse_host_port(listener->address()).port;
  EXPECT_EQ(listening_on(port), std::vector<std::string>{fmt::format("0100007F:{:04X}", port)});
  for (const char* every : {"0.0.0.0:0", "[::]:0", "[::ffff:0.0.0.0]:0"})
    EXPECT_NE(error_of([&] { tcp_listen(every, job(), test_parties()); }).find("every interface"),
              std::string::npos)
        << every;
}

TEST(TcpListener, PortInUseSaysHowToFindTheHolder) {
  const auto listener = tcp_listen("127.0.0.1:0", job(), test_parties());
  const std::string error = error_of([&] { tcp_listen(listener->address(), job(), test_parties()); });
  const uint16_t port = parse_host_port(listener->address()).port;
  EXPECT_NE(error.find(fmt::format("port {} of 127.0.0.1 is in use", port)), std::string::npos) << error;
  EXPECT_NE(error.find(fmt::format("ss -ltnp 'sport = :{}'", port)), std::string::npos) << error;
  EXPECT_NE(error_of([&] {
              tcp_listen("203.0.113.7:0", job(), test_parties());
            }).find("not an address of this host"),
            std::string::npos);
}

TEST(TcpListener, RefusedConnectionIsNamed) {
  auto listener = tcp_listen("127.0.0.1:0", job(), test_parties());
  const std::string address = listener->address();
  listener.reset();
  EXPECT_NE(error_of([&] {
              tcp_connect(address, job(), test_parties(), soon());
            }).find(address + ": connection refused"),
            std::string::npos);
}

TEST(UnixListener, PathIsRemovedAndAbstractNameIsRefusedTwice) {
  std::string folder = "/tmp/starling-net-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const std::string path = folder + "/s";
  {
    const auto listener = unix_listen(path, job(), test_parties());
  }
  EXPECT_NE(::access(path.c_str(), F_OK), 0);
  ::rmdir(folder.c_str());
  const std::string name = fmt::format("@starling-twice-{}", ::getpid());
  const auto listener = unix_listen(name, job(), test_parties());
  EXPECT_NE(error_of([&] { unix_listen(name, job(), test_parties()); }).find("in use"), std::string::npos);
}

}  // namespace
}  // namespace starling
