#include "starling/net/memory/memory_endpoint.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "starling/base/error.h"
#include "starling/net/stream/frame.h"

namespace starling {
namespace {

using std::chrono::milliseconds;

ConstBytes bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

TEST(MemoryEndpoint, CarriesAMessageAndCountsItsFrame) {
  auto [a, b] = make_memory_endpoints();
  a->send({7, bytes_of("head"), bytes_of("body")}, deadline_in(milliseconds(1000)));
  const MessageInfo info = b->peek(deadline_in(milliseconds(1000)));
  EXPECT_EQ(info.tag, 7u);
  EXPECT_EQ(info.bytes, 8u);
  std::string got(8, ' ');
  b->recv({7, {}, std::as_writable_bytes(std::span(got))}, deadline_in(milliseconds(1000)));
  EXPECT_EQ(got, "headbody");
  EXPECT_EQ(a->socket_sent(), kFrameHeaderBytes + 8);
  EXPECT_EQ(b->socket_received(), kFrameHeaderBytes + 8);
}

TEST(MemoryEndpoint, NamesBothSidesWhereTheMessageDiffers) {
  auto [a, b] = make_memory_endpoints();
  b->set_peer_rank(3, "node-c");
  a->send({7, bytes_of("four"), {}}, deadline_in(milliseconds(1000)));
  std::string got(5, ' ');
  try {
    b->recv({8, {}, std::as_writable_bytes(std::span(got))}, deadline_in(milliseconds(1000)));
    FAIL() << "a message of another size was taken";
  } catch (const CommError& e) {
    EXPECT_EQ(e.peer(), 3);
    EXPECT_NE(std::string(e.what()).find("rank 3 (node-c) sent a data message of 4 bytes"),
              std::string::npos);
  }
}

TEST(MemoryEndpoint, TimeoutCarriesTheLateRank) {
  auto [a, b] = make_memory_endpoints();
  b->set_peer_rank(1, "node-b");
  std::byte byte;
  try {
    b->recv({1, {}, {&byte, 1}}, deadline_in(milliseconds(5)));
    FAIL() << "nothing was sent";
  } catch (const TimeoutError& e) {
    EXPECT_EQ(e.peer(), 1);
  }
  EXPECT_THROW(b->peek(deadline_in(milliseconds(5))), TimeoutError);
}

TEST(MemoryEndpoint, PeerSeesTheEndAfterWhatWasSent) {
  auto [a, b] = make_memory_endpoints();
  a->send({1, bytes_of("x"), {}}, deadline_in(milliseconds(1000)));
  a.reset();
  std::byte byte;
  b->recv({1, {&byte, 1}, {}}, deadline_in(milliseconds(1000)));
  EXPECT_THROW(b->recv({1, {&byte, 1}, {}}, deadline_in(milliseconds(1000))), CommError);
  EXPECT_THROW(b->send({1, bytes_of("x"), {}}, deadline_in(milliseconds(1000))), CommError);
}

TEST(MemoryEndpoint, ShutdownWakesAWaiter) {
  auto [a, b] = make_memory_endpoints();
  std::thread waiter([&b = b] {
    std::byte byte;
    EXPECT_THROW(b->recv({1, {&byte, 1}, {}}, deadline_in(milliseconds(60'000))), CommError);
  });
  a->shutdown();
  waiter.join();
}

TEST(MemoryEndpoint, RingOfThreadsExchanges) {
  constexpr int kRanks = 3;
  std::unique_ptr<Endpoint> to_next[kRanks], from_previous[kRanks];
  for (int r = 0; r < kRanks; ++r) {
    auto [here, there] = make_memory_endpoints();
    to_next[r] = std::move(here);
    from_previous[(r + 1) % kRanks] = std::move(there);
  }
  std::vector<std::thread> ranks;
  std::vector<uint32_t> got(kRanks);
  for (int r = 0; r < kRanks; ++r) {
    ranks.emplace_back([&, r] {
      const uint32_t mine = 100 + r;
      exchange(*to_next[r], {1, {}, std::as_bytes(std::span(&mine, 1))}, *from_previous[r],
               {1, {}, std::as_writable_bytes(std::span(&got[r], 1))}, deadline_in(milliseconds(30'000)));
    });
  }
  for (auto& t : ranks) t.join();
  EXPECT_EQ(got, (std::vector<uint32_t>{102, 100, 101}));
}

}  // namespace
}  // namespace starling
