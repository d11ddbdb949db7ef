// Tests the bytes through an emulated link: all arrive in order, in both directions, and before the end.
// link_shape_test.cc tests the speed.
#include "starling/net/emulation/emulated_link.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <memory>
#include <thread>
#include <vector>

#include "starling/base/error.h"
#include "starling/net/stream/stream_endpoint.h"
#include "starling/net/stream/stream_listener.h"
#include "starling/testing/test_identity.h"

namespace starling {
namespace {

using Buffer = std::vector<std::byte>;

Buffer pattern(size_t bytes, int salt) {
  Buffer out(bytes);
  for (size_t i = 0; i < bytes; ++i)
    out[i] = static_cast<std::byte>(i * 31 + i / 251 + static_cast<size_t>(salt));
  return out;
}

struct Pair {
  std::unique_ptr<Endpoint> a, b;
};

// Returns two ends of a TCP connection on loopback. `a` is behind the link.
Pair connect(EmulatedLink& link) {
  const JobIdentity identity{make_job_key(), "emulated"};
  const auto listener = tcp_listen("127.0.0.1:0", identity, test_parties());
  Pair pair;
  const Deadline deadline = deadline_in(std::chrono::seconds(20));
  std::thread dialler([&] { pair.a = tcp_connect(listener->address(), identity, test_parties(), deadline); });
  pair.b = listener->accept(deadline);
  dialler.join();
  pair.a->pass_through([&](UniqueFd socket) { return link.attach(std::move(socket)); });
  return pair;
}

Deadline soon() {
  return deadline_in(std::chrono::seconds(20));
}

TEST(EmulatedLink, CarriesMessagesBothWays) {
  EmulatedLink link({.bits_per_s = 400e6, .latency_s = 1e-3, .loss = 0.01});
  const Pair pair = connect(link);
  const Buffer there = pattern(1'500'000, 1), back = pattern(700'000, 2);
  Buffer got_there(there.size()), got_back(back.size());
  std::thread other([&] {
    pair.b->exchange({.tag = 2, .head = {}, .body = back}, {.tag = 1, .head = {}, .body = got_there}, soon());
  });
  pair.a->exchange({.tag = 1, .head = {}, .body = there}, {.tag = 2, .head = {}, .body = got_back}, soon());
  other.join();
  EXPECT_EQ(got_there, there);
  EXPECT_EQ(got_back, back);
}

TEST(EmulatedLink, TakesNoLessThanLatencyAndRateAllow) {
  EmulatedLink link({.bits_per_s = 80e6, .latency_s = 20e-3});
  const Pair pair = connect(link);
  const Buffer sent = pattern(500'000, 3);
  Buffer got(sent.size());
  const auto start = std::chrono::steady_clock::now();
  std::thread other([&] { pair.b->recv({.tag = 1, .head = {}, .body = got}, soon()); });
  pair.a->send({.tag = 1, .head = {}, .body = sent}, soon());
  other.join();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  EXPECT_GE(took.count(), 0.02 + 500e3 * 8 / 80e6);
  EXPECT_EQ(got, sent);
}

TEST(EmulatedLink, WhatWasSentArrivesThoughTheSenderLeaves) {
  auto link = std::make_unique<EmulatedLink>(LinkLimits{.latency_s = 30e-3});
  Pair pair = connect(*link);
  const Buffer sent = pattern(100'000, 4);
  pair.a->send({.tag = 1, .head = {}, .body = sent}, soon());
  pair.a.reset();
  link.reset();
  Buffer got(sent.size());
  pair.b->recv({.tag = 1, .head = {}, .body = got}, soon());
  EXPECT_EQ(got, sent);
  EXPECT_THROW(pair.b->peek(soon()), CommError);
}

TEST(EmulatedLink, TheEndOfThePeerIsSeen) {
  EmulatedLink link({.latency_s = 1e-3});
  Pair pair = connect(link);
  pair.b.reset();
  EXPECT_THROW(pair.a->peek(soon()), CommError);
  EXPECT_THROW(for (int i = 0; i < 1000; ++i)
                   pair.a->send({.tag = 1, .head = {}, .body = pattern(100'000, 1)}, soon()),
               CommError);
}

}  // namespace
}  // namespace starling
