#include "starling/server/protocol.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <random>

#include "starling/base/error.h"

namespace starling {
namespace {

using testing::HasSubstr;

std::string fault(const std::function<void()>& call) {
  try {
    call();
  } catch (const CommError& error) {
    return error.what();
  }
  return "";
}

std::string refusal(const HeadBytes& head) {
  return fault([&] { decode(head, "worker 3"); });
}

HeadBytes push_with(size_t at, std::vector<int> bytes) {
  HeadBytes head = encode({.code = MessageCode::kPush, .clock = 3, .count = 10, .rate = 0.5});
  for (size_t i = 0; i < bytes.size(); ++i) head[at + i] = static_cast<std::byte>(bytes[i]);
  return head;
}

TEST(ServerProtocol, HeadsComeBackAsTheyWere) {
  const ServerMessage m{.code = MessageCode::kSnapshot,
                        .stop = true,
                        .want = SnapshotWant::kWhole,
                        .clock = int64_t{1} << 40,
                        .count = 12345,
                        .bytes = 777,
                        .rate = 1e-3,
                        .loss = std::numeric_limits<double>::infinity(),
                        .extra = 7};
  const ServerMessage back = decode(encode(m), "worker 0");
  EXPECT_EQ(back.code, m.code);
  EXPECT_EQ(back.stop, m.stop);
  EXPECT_EQ(back.want, m.want);
  EXPECT_EQ(back.clock, m.clock);
  EXPECT_EQ(back.count, m.count);
  EXPECT_EQ(back.bytes, m.bytes);
  EXPECT_EQ(back.rate, m.rate);
  EXPECT_EQ(back.loss, m.loss);
  EXPECT_EQ(back.extra, m.extra);
}

TEST(ServerProtocol, RefusesHostileHeads) {
  EXPECT_EQ(refusal(push_with(0, {})), "");
  EXPECT_THAT(refusal(push_with(0, {0})), HasSubstr("worker 3 sent an invalid message"));
  EXPECT_THAT(refusal(push_with(4, {0, 0})), HasSubstr("kind 0"));
  EXPECT_THAT(refusal(push_with(4, {99, 0})), HasSubstr("kind 99"));
  EXPECT_THAT(refusal(push_with(6, {8, 0})), HasSubstr("flags 8"));
  EXPECT_THAT(refusal(push_with(6, {6, 0})), HasSubstr("flags 6"));
  EXPECT_THAT(refusal(push_with(15, {0x80})), HasSubstr("clock -"));
  EXPECT_THAT(refusal(push_with(23, {1})), HasSubstr("a body of"));
  EXPECT_THAT(refusal(push_with(31, {1})), HasSubstr("bytes"));
  EXPECT_THAT(refusal(push_with(38, {0xf8, 0x7f})), HasSubstr("rate"));
  EXPECT_THAT(refusal(push_with(55, {0xff})), HasSubstr("number -"));
}

TEST(ServerProtocol, RandomBytesAreRefusedOrInRange) {
  std::mt19937 random(5);
  int refused = 0;
  for (int trial = 0; trial < 20'000; ++trial) {
    HeadBytes head = push_with(0, {});
    for (int i = 0; i < 3; ++i) head[random() % kHeadBytes] = static_cast<std::byte>(random());
    try {
      const ServerMessage m = decode(head, "worker 1");
      EXPECT_LE(m.count, kMaxElements);
      EXPECT_GE(m.clock, 0);
      EXPECT_STRNE(name_of(m.code), "?");
    } catch (const CommError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 1000);
  EXPECT_LT(refused, 20'000);
}

TEST(ServerProtocol, BodiesHaveTheLengthThatIsExpected) {
  const ServerMessage push{.code = MessageCode::kPush, .count = 11};
  EXPECT_THAT(fault([&] { expect_count(push, 10, "worker 2"); }),
              HasSubstr("worker 2 sent 'push' with 11 elements; it must have 10"));
  EXPECT_THAT(fault([&] { expect(push, MessageCode::kHello, "worker 2"); }),
              HasSubstr("worker 2 sent 'push' where 'hello' was expected"));
}

TEST(ServerProtocol, HelloIsReadWithCare) {
  const ServerHello back = decode_hello(encode_hello({8, {{1, 5}, {2, 3}, {1, 7}}, {0, 2}}), "worker 0");
  EXPECT_EQ(back.element_bytes, 8u);
  EXPECT_EQ(back.shapes, std::vector<TensorShape>({{1, 5}, {2, 3}, {1, 7}}));
  EXPECT_EQ(back.own_partitions, std::vector<size_t>({0, 2}));
  const uint64_t huge = ~uint64_t{0};
  const std::vector<std::vector<uint64_t>> hostile = {{},
                                                      {8},
                                                      {8, 1},
                                                      {8, huge},
                                                      {8, 1, 1, 5, 0, 0},
                                                      {8, 1, 0, 1},
                                                      {8, 1, 2, huge},
                                                      {8, 1, kMaxElements, 2},
                                                      {8, 2, 1, kMaxElements, 1, kMaxElements}};
  for (const auto& body : hostile)
    EXPECT_NE(fault([&] { decode_hello(body, "worker 0"); }), "") << body.size();
}

TEST(ServerProtocol, ReportsComeBackAsTheyWereAndAreReadWithCare) {
  ServerTableStats stats;
  stats.staleness = {{0, 10}, {3, 2}};
  stats.max_staleness = 3;
  stats.reads = 12;
  stats.updates = 9;
  stats.late_dropped = 1;
  stats.retired = 1;
  stats.lost = {1};
  stats.pushes = {4, 0, 6};
  const ServerTableStats back = decode_stats(encode_stats(stats), "server 0");
  EXPECT_EQ(back.staleness, stats.staleness);
  EXPECT_EQ(back.max_staleness, 3);
  EXPECT_EQ(back.pushes, stats.pushes);
  EXPECT_EQ(back.requests(), 22u);
  EXPECT_EQ(back.lost, stats.lost);
  EXPECT_EQ(back.late_dropped + back.retired + back.updates, 11u);
  const std::vector<ServerTableEvent> events = {{ServerTableAction::kPush, 1, 2, 3},
                                                {ServerTableAction::kRetire, 0, 1, 0}};
  EXPECT_EQ(decode_events(encode_events(events), "server 0"), events);
  const std::vector<std::vector<int64_t>> hostile = {
      {}, {0, 0, 0, 0, 0}, {0, 0, 0, 0, 0, 5}, {0, 0, 0, 0, 0, -1}, {0, 0, 0, 0, 0, 0, 1}};
  for (const auto& body : hostile)
    EXPECT_NE(fault([&] { decode_stats(body, "server 0"); }), "") << body.size();
  EXPECT_NE(fault([] { decode_events(std::vector<int64_t>{1, 2, 3}, "server 0"); }), "");
  EXPECT_NE(fault([] { decode_events(std::vector<int64_t>{77, 0, 0, 0}, "server 0"); }), "");
}

}  // namespace
}  // namespace starling
