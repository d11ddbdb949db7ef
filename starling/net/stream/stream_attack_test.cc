// Tests attackers on real sockets: between two endpoints, in front of a listener, and with the job key.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "starling/base/error.h"
#include "starling/net/stream/frame.h"
#include "starling/net/stream/pending_connections.h"
#include "starling/net/stream/socket.h"
#include "starling/net/stream/stream_endpoint.h"
#include "starling/net/stream/stream_listener.h"
#include "starling/testing/error_of.h"
#include "starling/testing/test_identity.h"

namespace starling {
namespace {

using std::chrono::milliseconds;

constexpr uint32_t kTag = 9;
constexpr MessageKind kKinds[] = {MessageKind::kData, MessageKind::kControl};

Deadline soon() {
  return deadline_in(std::chrono::seconds(30));
}
JobIdentity job(DataSecurity security = DataSecurity::kNone) {
  return test_identity("attack-test", security);
}
bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Reads exactly `bytes` bytes, or fewer if the other side ends.
std::string take(const UniqueFd& from, size_t bytes) {
  std::string text(bytes, ' ');
  size_t have = 0;
  while (have < bytes && wait_for(from.get(), POLLIN, soon())) {
    iovec room{text.data() + have, bytes - have};
    const Moved got = recv_some(from.get(), {&room, 1});
    have += got.bytes;
    if (got.ended || got.error != 0) break;
  }
  text.resize(have);
  return text;
}
// Writes all of `text`, or as much as possible before the other side ends.
void put(const UniqueFd& to, const std::string& text) {
  for (size_t sent = 0; sent < text.size() && wait_for(to.get(), POLLOUT, soon());) {
    iovec rest{const_cast<char*>(text.data()) + sent, text.size() - sent};
    const Moved moved = send_some(to.get(), {&rest, 1});
    if (moved.error != 0) return;
    sent += moved.bytes;
  }
}
std::string greeting_of_a_client() {
  return Handshake(HandshakeRole::kClient, job(), test_parties()).output();
}
// Returns what has arrived, or nothing if the other side has ended.
std::optional<std::string> take_some(const UniqueFd& from) {
  std::string text(4096, ' ');
  iovec room{text.data(), text.size()};
  const Moved got = recv_some(from.get(), {&room, 1});
  if (got.ended || got.error != 0) return std::nullopt;
  text.resize(got.bytes);
  return text;
}
// Changes what one side says: 0 is the client, 1 is the server.
using Change = std::function<std::string(int side, const std::string& text)>;
// Passes bytes between the two until `over` or until a side ends. Returns what each side has said.
std::array<std::string, 2> relay(const UniqueFd& client, const UniqueFd& server, const Change& change,
                                 const std::function<bool()>& over) {
  std::array<std::string, 2> said;
  const std::array<const UniqueFd*, 2> sides = {&client, &server};
  while (!over()) {
    for (const int side : {0, 1}) {
      if (!wait_for(sides[side]->get(), POLLIN, deadline_in(milliseconds(2)))) continue;
      const auto text = take_some(*sides[side]);
      if (!text) return said;
      said[side] += *text;
      put(*sides[1 - side], change(side, *text));
    }
  }
  return said;
}
template <typename T>
bool is_ready(const std::future<T>& future) {
  return future.wait_for(milliseconds(0)) == std::future_status::ready;
}
// Returns whether the other side ends the connection in time.
bool is_ended(const UniqueFd& fd) {
  std::array<char, 4096> buffer;
  while (wait_for(fd.get(), POLLIN, soon())) {
    iovec room{buffer.data(), buffer.size()};
    const Moved got = recv_some(fd.get(), {&room, 1});
    if (got.ended || got.error != 0) return true;
  }
  return false;
}

// Wire has two endpoints, a and b. An attacker is between them and has let their handshake pass.
struct Wire {
  explicit Wire(DataSecurity how)
      : security(how), listener(tcp_listen("127.0.0.1:0", job(how), test_parties())) {
    const UniqueFd trap = listen_at(parse_address("127.0.0.1:0"));
    const std::string there = local_address(trap.get()).text();
    auto client =
        std::async(std::launch::async, [&] { return tcp_connect(there, job(how), test_parties(), soon()); });
    auto server = std::async(std::launch::async, [&] { return listener->accept(soon()); });
    wait_for(trap.get(), POLLIN, soon());
    to_a = accept_from(trap.get()).value();
    to_b = connect_to(parse_address(listener->address()), soon());
    const auto said = relay(
        to_a, to_b, [](int, const std::string& text) { return text; },
        [&] { return is_ready(client) && is_ready(server); });
    said_by_a = said[0];
    a = client.get();
    b = server.get();
  }

  BodyForm form(MessageKind kind) const { return body_form(security, kind); }
  // Returns what the attacker sees of a message from a.
  std::string frame(MessageKind kind, const std::string& text) const {
    const ConstBytes body = std::as_bytes(std::span(text));
    auto sender = std::async(std::launch::async, [&] {
      a->send({kTag, body.first(body.size() / 3), body.subspan(body.size() / 3), kind}, soon());
    });
    std::string seen = take(to_a, framed_bytes(form(kind), text.size()));
    sender.get();
    return seen;
  }
  std::string receive(MessageKind kind, size_t bytes) const {
    std::string text(bytes, ' ');
    const Bytes room = std::as_writable_bytes(std::span(text));
    b->recv({kTag, room.first(bytes / 2), room.subspan(bytes / 2), kind}, soon());
    return text;
  }
  std::string receive_error(MessageKind kind, size_t bytes) const {
    return error_of([&] { receive(kind, bytes); });
  }

  DataSecurity security;
  std::unique_ptr<Listener> listener;
  UniqueFd to_a, to_b;
  std::string said_by_a;  // during the handshake
  std::unique_ptr<Endpoint> a, b;
};

std::string letters(size_t bytes) {
  std::string text(bytes, ' ');
  for (size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>('a' + (i / 7 + i) % 26);
  return text;
}

class Attack : public testing::TestWithParam<DataSecurity> {};
INSTANTIATE_TEST_SUITE_P(Net, Attack,
                         testing::Values(DataSecurity::kNone, DataSecurity::kAuth, DataSecurity::kEncrypt),
                         [](const auto& info) { return std::string(security_name(info.param)); });

TEST_P(Attack, WhatIsNotTouchedArrivesAndOnlyEncryptionHidesIt) {
  const Wire wire(GetParam());
  for (const MessageKind kind : kKinds) {
    for (const size_t bytes :
         {size_t{0}, size_t{1}, size_t{1000}, kSegmentBytes, kSegmentBytes + 1, size_t{200'000}}) {
      if (kind == MessageKind::kControl && bytes > kMaxControlBytes) continue;
      const std::string text = letters(bytes), seen = wire.frame(kind, text);
      EXPECT_EQ(seen.size(), framed_bytes(wire.form(kind), bytes));
      if (bytes >= 1000) {
        EXPECT_EQ(contains(seen, text.substr(500, 100)), GetParam() != DataSecurity::kEncrypt);
      }
      [[maybe_unused]] const auto sender = std::async(std::launch::async, [&] { put(wire.to_b, seen); });
      EXPECT_EQ(wire.receive(kind, bytes), text);
    }
  }
}

TEST_P(Attack, ReplayedFrame) {
  for (const MessageKind kind : kKinds) {
    const Wire wire(GetParam());
    const std::string frame = wire.frame(kind, letters(100));
    put(wire.to_b, frame + frame);
    EXPECT_EQ(wire.receive(kind, 100), letters(100));
    EXPECT_TRUE(contains(wire.receive_error(kind, 100), "the header of a message is not authentic"));
  }
}

TEST_P(Attack, FrameOfAnEarlierConnection) {
  for (const MessageKind kind : kKinds) {
    const std::string frame = Wire(GetParam()).frame(kind, letters(100));
    const Wire later(GetParam());
    put(later.to_b, frame);
    EXPECT_TRUE(contains(later.receive_error(kind, 100), "is not authentic"));
  }
}

TEST_P(Attack, ReflectedFrame) {
  for (const MessageKind kind : kKinds) {
    const Wire wire(GetParam());
    put(wire.to_a, wire.frame(kind, letters(100)));
    std::string text(100, ' ');
    const Bytes room = std::as_writable_bytes(std::span(text));
    EXPECT_TRUE(
        contains(error_of([&] { wire.a->recv({kTag, {}, room, kind}, soon()); }), "is not authentic"));
  }
}

TEST_P(Attack, ReorderedAndOmittedFrames) {
  for (const MessageKind kind : kKinds) {
    for (const bool omit : {false, true}) {
      const Wire wire(GetParam());
      const std::string first = wire.frame(kind, letters(100)), second = wire.frame(kind, letters(100));
      put(wire.to_b, omit ? second : second + first);
      EXPECT_TRUE(contains(wire.receive_error(kind, 100), "is not authentic"));
    }
  }
}

TEST(Attacks, ReorderedSegments) {
  for (const DataSecurity security : {DataSecurity::kAuth, DataSecurity::kEncrypt}) {
    const Wire wire(security);
    std::string frame = wire.frame(MessageKind::kData, letters(3 * kSegmentBytes));
    const size_t step = kSegmentBytes + kSealBytes;
    const std::string second = frame.substr(kFrameHeaderBytes + step, step);
    frame.erase(kFrameHeaderBytes + step, step).insert(kFrameHeaderBytes, second);
    [[maybe_unused]] const auto sender = std::async(std::launch::async, [&] { put(wire.to_b, frame); });
    const std::string error = wire.receive_error(MessageKind::kData, 3 * kSegmentBytes);
    EXPECT_TRUE(contains(error, "a message is not authentic")) << error;
    wire.b->shutdown();
  }
}

TEST_P(Attack, TruncatedFrame) {
  for (const MessageKind kind : kKinds) {
    const Wire ended(GetParam());
    const std::string whole = ended.frame(kind, letters(100));
    put(ended.to_b, whole.substr(0, whole.size() - 1));
    ::shutdown(ended.to_b.get(), SHUT_WR);
    EXPECT_TRUE(contains(ended.receive_error(kind, 100), "closed within a message"));

    // The next message fills in the missing bytes.
    const Wire wire(GetParam());
    const std::string first = wire.frame(kind, letters(100)), second = wire.frame(kind, letters(100));
    put(wire.to_b, first.substr(0, first.size() - 30) + second);
    const bool plain = wire.form(kind) == BodyForm::kPlain;
    EXPECT_EQ(wire.receive_error(kind, 100).empty(), plain);
    if (plain) {
      EXPECT_NE(wire.receive_error(kind, 100), "");  // the damage shows at the next header
    }
  }
}

TEST_P(Attack, AFlippedBitInTheHead) {
  for (const MessageKind kind : kKinds) {
    for (size_t i = 0; i < kFrameHeaderBytes; ++i) {
      const Wire wire(GetParam());
      std::string frame = wire.frame(kind, letters(10));
      frame[i] = static_cast<char>(frame[i] ^ (1 << i % 8));
      put(wire.to_b, frame);
      EXPECT_NE(error_of([&] { wire.b->peek(soon()); }), "") << "byte " << i;
    }
  }
}

TEST_P(Attack, AFlippedBitInTheBody) {
  for (const MessageKind kind : kKinds) {
    const size_t bytes = kind == MessageKind::kData ? 200'000 : kMaxControlBytes;
    const size_t size = framed_bytes(body_form(GetParam(), kind), bytes);
    for (const size_t at :
         {kFrameHeaderBytes, kFrameHeaderBytes + kSegmentBytes + kSealBytes + 5, size - 1}) {
      const Wire wire(GetParam());
      std::string frame = wire.frame(kind, letters(bytes));
      frame[at] = static_cast<char>(frame[at] ^ 1);
      [[maybe_unused]] const auto sender = std::async(std::launch::async, [&] { put(wire.to_b, frame); });
      if (wire.form(kind) == BodyForm::kPlain) {
        std::string changed = letters(bytes);  // nobody notices, as documented for `none`
        changed[at - kFrameHeaderBytes] = static_cast<char>(changed[at - kFrameHeaderBytes] ^ 1);
        EXPECT_EQ(wire.receive(kind, bytes), changed);
      } else {
        EXPECT_TRUE(contains(wire.receive_error(kind, bytes), "a message is not authentic")) << at;
      }
      wire.b->shutdown();
    }
  }
}

TEST_P(Attack, AnOversizeLengthIsNeverBelieved) {
  for (const MessageKind kind : kKinds) {
    for (const int byte : {9, 12, 15}) {  // more than was sent, more than memory has, more than is allowed
      const Wire wire(GetParam());
      std::string frame = wire.frame(kind, letters(10));
      frame[byte] = '\x7f';
      put(wire.to_b, frame);
      EXPECT_NE(error_of([&] { wire.b->peek(soon()); }), "") << "byte " << byte;
    }
  }
}

// Traitor is a peer that holds the key and then writes bytes of its own.
struct Traitor {
  Traitor() : listener(tcp_listen("127.0.0.1:0", job(), test_parties())) {
    auto accepted = std::async(std::launch::async, [&] { return listener->accept(soon()); });
    raw = connect_to(parse_address(listener->address()), soon());
    keys = greet(raw.get(), job(), test_parties(), "test", soon());
    sealing = std::make_unique<Gcm>(keys.sending, Gcm::Use::kSeal);
    server = accepted.get();
  }
  void header(MessageKind kind, uint64_t bytes) const {
    const FrameHeader header = seal_frame_header(*sealing, {kTag, bytes, kind});
    put(raw, std::string(reinterpret_cast<const char*>(header.data()), header.size()));
  }
  std::string peek_error() const {
    return error_of([&] { server->peek(soon()); });
  }
  std::unique_ptr<Listener> listener;
  UniqueFd raw;
  ConnectionKeys keys;
  std::unique_ptr<Gcm> sealing;
  std::unique_ptr<Endpoint> server;
};

TEST(Traitors, GarbageAndOversizeMessagesAreRefused) {
  const Traitor garbage;
  put(garbage.raw, std::string(kFrameHeaderBytes, 'x'));
  EXPECT_TRUE(contains(garbage.peek_error(), "not a Starling frame"));
  const Traitor control;
  control.header(MessageKind::kControl, kMaxControlBytes + 1);
  EXPECT_TRUE(contains(control.peek_error(), "at most 66560 are allowed"));
  const Traitor data;
  data.header(MessageKind::kData, ~uint64_t{0});
  EXPECT_TRUE(contains(data.peek_error(), "at most"));
  // The size is allowed. A receiver that expects another message refuses it before it takes memory.
  const Traitor large;
  large.header(MessageKind::kData, kMaxDataBytes);
  std::byte byte;
  EXPECT_TRUE(contains(error_of([&] { large.server->recv({kTag, {}, {&byte, 1}}, soon()); }), "was due"));
}

// Returns the message of a listener that refused a peer while it waited for another.
std::string refusal_of(Listener& listener) {
  std::string error;
  for (const Deadline end = soon(); !contains(error, "refused, the last") && !has_passed(end);)
    error = error_of([&] { listener.accept(deadline_in(milliseconds(20))); });
  return error;
}

TEST(ListenerAttacks, ReplayedHandshake) {
  const Wire wire(DataSecurity::kNone);
  const UniqueFd again = connect_to(parse_address(wire.listener->address()), soon());
  put(again, wire.said_by_a);
  EXPECT_TRUE(contains(refusal_of(*wire.listener), "wrong job key"));
  EXPECT_TRUE(is_ended(again));
}

TEST(ListenerAttacks, ReflectedGreeting) {
  const auto listener = tcp_listen("127.0.0.1:0", job(), test_parties());
  const UniqueFd raw = connect_to(parse_address(listener->address()), soon());
  put(raw, greeting_of_a_client());
  auto accepting = std::async(std::launch::async, [&] { return refusal_of(*listener); });
  (void)take(raw, 13);
  wait_for(raw.get(), POLLIN, soon());
  put(raw, take_some(raw).value_or(""));  // the listener's own messages
  EXPECT_TRUE(contains(accepting.get(), "not a Starling peer"));
  EXPECT_TRUE(is_ended(raw));
}

// A man between a client and a listener, both of which hold the key and encrypt, changes the handshake.
struct Between {
  explicit Between(const Change& change, AdmissionLimits limits = {}) {
    const JobIdentity identity = job(DataSecurity::kEncrypt);
    const auto listener = tcp_listen("127.0.0.1:0", identity, test_parties(), limits);
    const UniqueFd trap = listen_at(parse_address("127.0.0.1:0"));
    const std::string there = local_address(trap.get()).text();
    auto client = std::async(std::launch::async, [&] {
      return error_of([&] { tcp_connect(there, identity, test_parties(), soon()); });
    });
    auto server = std::async(std::launch::async, [&] { return refusal_of(*listener); });
    wait_for(trap.get(), POLLIN, soon());
    UniqueFd to_client = accept_from(trap.get()).value();
    UniqueFd to_server = connect_to(parse_address(listener->address()), soon());
    relay(to_client, to_server, change, [&] { return is_ready(client) || is_ready(server); });
    to_client.reset();
    to_server.reset();
    client_error = client.get();
    server_error = server.get();
  }
  std::string client_error, server_error;
};

std::string replaced(std::string text, const std::string& what, const std::string& with) {
  const size_t at = text.find(what);
  return at == std::string::npos ? text : text.replace(at, what.size(), with);
}

TEST(ListenerAttacks, AManBetweenCannotStripEncryption) {
  const Between strips([](int side, const std::string& text) {
    return side == 0 ? replaced(text, "security=encrypt", "security=none   ") : text;
  });
  EXPECT_NE(strips.client_error, "");
  EXPECT_TRUE(contains(strips.server_error, "not a Starling peer")) << strips.server_error;
  const Between other([](int side, const std::string& text) {
    return side == 0 ? replaced(text, "to=listener", "to=listenes") : text;
  });
  EXPECT_TRUE(contains(other.client_error, "wrong job key")) << other.client_error;
  EXPECT_TRUE(contains(other.server_error, "wrong job key")) << other.server_error;
}

TEST(ListenerAttacks, ATruncatedHandshakeAdmitsNobody) {
  for (const int cut : {0, 1}) {
    const Between cuts(
        [cut](int side, const std::string& text) {
          return side == cut ? text.substr(0, text.size() - 1) : text;
        },
        {milliseconds(500)});
    EXPECT_NE(cuts.client_error, "");
    EXPECT_TRUE(contains(cuts.server_error, "handshake")) << cuts.server_error;
  }
}

TEST(ListenerAttacks, DifferentSettingsAreNamedOnBothSidesBeforeDataFlows) {
  const auto listener = tcp_listen("127.0.0.1:0", job(DataSecurity::kEncrypt), test_parties());
  auto client = std::async(std::launch::async, [&] {
    return error_of(
        [&] { tcp_connect(listener->address(), job(DataSecurity::kAuth), test_parties(), soon()); });
  });
  EXPECT_TRUE(
      contains(refusal_of(*listener), "the peer uses --net-security auth and this process uses encrypt"));
  EXPECT_TRUE(contains(client.get(), "the peer uses --net-security encrypt and this process uses auth"));
}

TEST(ListenerAttacks, WhoTalksWithoutEndIsReadNoFurtherThanAHandshake) {
  PendingConnections pending(job(), test_parties(), {});
  const UniqueFd listener = listen_at(parse_address("127.0.0.1:0"));
  const UniqueFd raw = connect_to(local_address(listener.get()), soon());
  put(raw, greeting_of_a_client() + std::string(100'000, 'x'));
  while (pending.refused() == 0) {
    std::vector<pollfd> polled = {{listener.get(), POLLIN, 0}};
    pending.append_to(polled);
    ::poll(polled.data(), polled.size(), 10);
    pending.accept_all(listener.get());
    EXPECT_TRUE(pending.advance().empty());
  }
  EXPECT_TRUE(contains(pending.last_refusal(), "the peer did not send a TLS record"));
  EXPECT_EQ(pending.size(), 0u);
}

TEST(ListenerAttacks, DrippingBytesBuysNoTime) {
  PendingConnections pending(job(), test_parties(), {milliseconds(150), 4});
  const UniqueFd listener = listen_at(parse_address("127.0.0.1:0"));
  const UniqueFd raw = connect_to(local_address(listener.get()), soon());
  const std::string greeting = greeting_of_a_client();
  for (size_t sent = 0; pending.refused() == 0 && !testing::Test::HasFailure(); ++sent) {
    ASSERT_LT(sent, greeting.size()) << "let in to the end of the greeting";
    put(raw, greeting.substr(sent, 1));
    std::vector<pollfd> polled = {{listener.get(), POLLIN, 0}};
    ::poll(polled.data(), polled.size(), 10);
    pending.accept_all(listener.get());
    EXPECT_TRUE(pending.advance().empty());
  }
  EXPECT_TRUE(contains(pending.last_refusal(), "no handshake within 150 ms")) << pending.last_refusal();
}

// Allows as many descriptors as the system permits. Returns false if that is fewer than `wanted`.
bool allow_descriptors(rlim_t wanted) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
  if (limit.rlim_cur < wanted) {
    limit.rlim_cur = std::min(wanted, limit.rlim_max);
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
  return limit.rlim_cur >= wanted;
}

TEST(ListenerAttacks, TenThousandSilentConnectionsKeepNobodyOut) {
  const int strangers = allow_descriptors(10'500) ? 10'000 : 500;
  const AdmissionLimits limits{milliseconds(5'000), 256, milliseconds(100)};
  const UniqueFd listener = listen_at(parse_address("127.0.0.1:0"));
  const SocketAddress address = local_address(listener.get());
  std::vector<UniqueFd> silent;
  for (int i = 0; i < strangers; ++i) {
    silent.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    ASSERT_TRUE(silent.back().valid());
    const int status = ::connect(silent.back().get(), address.data(), address.bytes());
    ASSERT_TRUE(status == 0 || errno == EINPROGRESS);
  }
  auto friendly = std::async(std::launch::async, [&] {
    for (;;) {
      try {
        return tcp_connect(address.text(), job(), test_parties(), soon());
      } catch (const CommError&) {
        continue;  // the machine was so busy that this peer's handshake took longer than the grace
      }
    }
  });
  PendingConnections pending(job(), test_parties(), limits);
  size_t most = 0;
  std::vector<AuthenticatedSocket> in;
  const Deadline end = soon();
  while (in.empty() && !has_passed(end)) {
    std::vector<pollfd> polled;
    if (pending.has_room()) polled.push_back({listener.get(), POLLIN, 0});
    pending.append_to(polled);
    ::poll(polled.data(), polled.size(), std::min(100, poll_timeout(pending.earliest_deadline(end))));
    pending.accept_all(listener.get());
    in = pending.advance();
    most = std::max(most, pending.size() + in.size());
  }
  EXPECT_EQ(in.size(), 1u);
  EXPECT_EQ(most, 256u);
  silent.clear();
  EXPECT_NE(friendly.get(), nullptr);
}

}  // namespace
}  // namespace starling
