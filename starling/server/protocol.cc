#include "starling/server/protocol.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "starling/base/error.h"
#include "starling/net/wire.h"

namespace starling {
namespace {

constexpr uint32_t kMagic = 0x32735053;  // "SPs2"
constexpr uint16_t kStop = 1;
constexpr int kWantShift = 1;
constexpr int kLostShift = 3;
constexpr int kMostLost = (1 << (16 - kLostShift)) - 1;
constexpr size_t kStatNumbers = 7;

[[noreturn]] void refuse(const std::string& peer, const std::string& why) {
  throw CommError(fmt::format("{} sent an invalid message of the parameter-server protocol: {}", peer, why));
}

}  // namespace

const char* name_of(MessageCode code) {
  static constexpr const char* kNames[] = {"hello",      "load",      "push",     "pull",     "snapshot",
                                           "statistics", "events",    "goodbye",  "welcome",  "parameters",
                                           "report",     "row hello", "row push", "row pull", "row clock",
                                           "row scan",   "rows"};
  const auto index = static_cast<size_t>(code) - 1;
  return index < std::size(kNames) ? kNames[index] : "?";
}

HeadBytes encode(const ServerMessage& m) {
  HeadBytes out{};
  const auto flags =
      static_cast<uint16_t>((m.stop ? kStop : 0) | (static_cast<uint16_t>(m.want) << kWantShift) |
                            (std::min(m.lost, kMostLost) << kLostShift));
  store_le<uint32_t>(out.data(), kMagic);
  store_le<uint16_t>(out.data() + 4, static_cast<uint16_t>(m.code));
  store_le<uint16_t>(out.data() + 6, flags);
  store_le<uint64_t>(out.data() + 8, static_cast<uint64_t>(m.clock));
  store_le<uint64_t>(out.data() + 16, m.count);
  store_le<uint64_t>(out.data() + 24, m.bytes);
  store_le<uint64_t>(out.data() + 32, std::bit_cast<uint64_t>(m.rate));
  store_le<uint64_t>(out.data() + 40, std::bit_cast<uint64_t>(m.loss));
  store_le<uint64_t>(out.data() + 48, static_cast<uint64_t>(m.extra));
  return out;
}

ServerMessage decode(std::span<const std::byte, kHeadBytes> head, const std::string& peer) {
  if (load_le<uint32_t>(head.data()) != kMagic)
    refuse(peer, "its first bytes are those of no message; use one version of Starling for all processes");
  const auto code = load_le<uint16_t>(head.data() + 4);
  const auto flags = load_le<uint16_t>(head.data() + 6);
  const auto want = static_cast<uint16_t>(flags >> kWantShift & 3);
  ServerMessage m;
  m.code = static_cast<MessageCode>(code);
  m.stop = (flags & kStop) != 0;
  m.want = static_cast<SnapshotWant>(want);
  m.lost = flags >> kLostShift;
  m.clock = static_cast<int64_t>(load_le<uint64_t>(head.data() + 8));
  m.count = load_le<uint64_t>(head.data() + 16);
  m.bytes = load_le<uint64_t>(head.data() + 24);
  m.rate = std::bit_cast<double>(load_le<uint64_t>(head.data() + 32));
  m.loss = std::bit_cast<double>(load_le<uint64_t>(head.data() + 40));
  m.extra = static_cast<int64_t>(load_le<uint64_t>(head.data() + 48));
  if (code < static_cast<uint16_t>(MessageCode::kHello) || code > static_cast<uint16_t>(MessageCode::kRows))
    refuse(peer, fmt::format("kind {}", code));
  if ((m.lost > 0 && m.code != MessageCode::kParameters) || m.want > SnapshotWant::kWhole)
    refuse(peer, fmt::format("flags {}", flags));
  if (m.clock < 0 || m.extra < 0) refuse(peer, fmt::format("clock {}, number {}", m.clock, m.extra));
  if (m.count > kMaxElements) refuse(peer, fmt::format("a body of {} elements", m.count));
  if (m.bytes > 8 * kMaxElements) refuse(peer, fmt::format("a body of {} bytes", m.bytes));
  if (!std::isfinite(m.rate)) refuse(peer, fmt::format("rate {}", m.rate));
  return m;
}

void expect(const ServerMessage& message, MessageCode code, const std::string& peer) {
  if (message.code == code) return;
  throw CommError(
      fmt::format("{} sent '{}' where '{}' was expected", peer, name_of(message.code), name_of(code)));
}

void expect_count(const ServerMessage& message, uint64_t count, const std::string& peer) {
  if (message.count == count) return;
  throw CommError(fmt::format("{} sent '{}' with {} elements; it must have {}", peer, name_of(message.code),
                              message.count, count));
}

void expect_bytes(const ServerMessage& message, uint64_t bytes, const std::string& peer) {
  if (message.bytes == bytes) return;
  throw CommError(fmt::format("{} sent '{}' with a body of {} bytes; {} elements need {}", peer,
                              name_of(message.code), message.bytes, message.count, bytes));
}

std::vector<uint64_t> encode_hello(const ServerHello& hello) {
  std::vector<uint64_t> out = {hello.element_bytes, hello.shapes.size()};
  for (const TensorShape& shape : hello.shapes) out.insert(out.end(), {shape.rows, shape.cols});
  out.insert(out.end(), hello.own_partitions.begin(), hello.own_partitions.end());
  return out;
}

ServerHello decode_hello(std::span<const uint64_t> body, const std::string& peer) {
  if (body.size() < 2 || body[1] > (body.size() - 2) / 2 || body.size() - 2 - 2 * body[1] > body[1])
    refuse(peer, fmt::format("a hello of {} numbers", body.size()));
  ServerHello hello;
  hello.element_bytes = body[0];
  uint64_t total = 0;
  for (size_t partition = 0; partition < body[1]; ++partition) {
    const uint64_t rows = body[2 + 2 * partition], cols = body[3 + 2 * partition];
    if (rows == 0 || cols == 0 || rows > kMaxElements || cols > kMaxElements / rows)
      refuse(peer, fmt::format("a partition of {} times {} elements", rows, cols));
    hello.shapes.push_back({rows, cols});
    total += rows * cols;
  }
  if (total > kMaxElements) refuse(peer, fmt::format("a shard of {} elements", total));
  const auto own = body.subspan(2 + 2 * body[1]);
  hello.own_partitions.assign(own.begin(), own.end());
  return hello;
}

std::vector<int64_t> encode_stats(const ServerTableStats& s) {
  std::vector<int64_t> out = {s.max_staleness,
                              static_cast<int64_t>(s.reads),
                              static_cast<int64_t>(s.updates),
                              static_cast<int64_t>(s.late_dropped),
                              static_cast<int64_t>(s.retired),
                              static_cast<int64_t>(s.pushes.size()),
                              static_cast<int64_t>(s.lost.size())};
  out.insert(out.end(), s.pushes.begin(), s.pushes.end());
  out.insert(out.end(), s.lost.begin(), s.lost.end());
  for (const auto& [bin, count] : s.staleness) {
    out.push_back(bin);
    out.push_back(static_cast<int64_t>(count));
  }
  return out;
}

ServerTableStats decode_stats(std::span<const int64_t> body, const std::string& peer) {
  const auto wrong = [&] { refuse(peer, fmt::format("statistics of {} numbers", body.size())); };
  if (body.size() < kStatNumbers || body[5] < 0 || body[6] < 0) wrong();
  const size_t listed = body.size() - kStatNumbers;
  const auto workers = static_cast<size_t>(body[5]), lost_count = static_cast<size_t>(body[6]);
  if (workers > listed || lost_count > listed - workers || (listed - workers - lost_count) % 2 != 0) wrong();
  ServerTableStats s;
  s.max_staleness = body[0];
  s.reads = static_cast<uint64_t>(body[1]);
  s.updates = static_cast<uint64_t>(body[2]);
  s.late_dropped = static_cast<uint64_t>(body[3]);
  s.retired = static_cast<uint64_t>(body[4]);
  const auto pushes = body.subspan(kStatNumbers, workers);
  const auto lost = body.subspan(kStatNumbers + workers, lost_count);
  const auto bins = body.subspan(kStatNumbers + workers + lost_count);
  s.pushes.assign(pushes.begin(), pushes.end());
  for (const int64_t worker : lost) {
    if (worker < 0 || static_cast<size_t>(worker) >= workers) wrong();
    s.lost.push_back(static_cast<int>(worker));
  }
  for (size_t i = 0; i < bins.size(); i += 2) s.staleness[bins[i]] = static_cast<uint64_t>(bins[i + 1]);
  return s;
}

std::vector<int64_t> encode_events(const std::vector<ServerTableEvent>& events) {
  std::vector<int64_t> out;
  for (const ServerTableEvent& e : events) {
    out.insert(out.end(), {static_cast<int64_t>(e.action), e.worker, e.clock, e.value});
  }
  return out;
}

std::vector<ServerTableEvent> decode_events(std::span<const int64_t> body, const std::string& peer) {
  if (body.size() % 4 != 0) refuse(peer, fmt::format("events of {} numbers", body.size()));
  std::vector<ServerTableEvent> events;
  for (size_t i = 0; i < body.size(); i += 4) {
    if (body[i] < 0 || body[i] > static_cast<int64_t>(ServerTableAction::kRetire))
      refuse(peer, fmt::format("an event of kind {}", body[i]));
    events.push_back({static_cast<ServerTableAction>(body[i]), body[i + 1], body[i + 2], body[i + 3]});
  }
  return events;
}

}  // namespace starling
