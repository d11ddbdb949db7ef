// What workers and server shards say to each other: a head of 56 bytes, then a body whose length both sides know before it
// comes; a head that states another is refused before any memory is taken.
//
//   head   magic u32 | kind u16 | flags u16 | clock i64 | count u64 | bytes u64 | rate f64 | loss f64 | extra i64
//   body   count elements in `bytes` bytes: T (values, or a codec's message of them), u64 (hello) or i64 (reports)
//   All little-endian.
//
//   worker → server           body                                       answer
//   hello                     shape of the shard, partitions owned       welcome: extra = states of the update rule
//   load       extra updates  parameters [and states] of those owned     –
//   push       clock, rate = lr, loss, stop     gradient                 –
//              extra = samples it is the mean of
//   pull       clock, extra = loads to wait for                          parameters: clock, loss, stop, lost, extra = staleness
//   snapshot   want                                                      parameters: as above, extra = updates
//   statistics, events                                                   report
//   goodbye                                                              –
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "starling/codec/codec.h"
#include "starling/server/table_stats.h"

namespace starling {

enum class MessageCode : uint16_t {
  kHello = 1,
  kLoad,
  kPush,
  kPull,
  kSnapshot,
  kStatistics,
  kEvents,
  kGoodbye,
  kWelcome,
  kParameters,
  kReport
};
const char* name_of(MessageCode code);

enum class SnapshotWant : uint16_t { kNothing, kOwn, kWhole };

inline constexpr size_t kHeadBytes = 56;
inline constexpr uint64_t kMaxElements = uint64_t{1} << 40;
inline constexpr uint64_t kMaxReport = uint64_t{1} << 24;

using HeadBytes = std::array<std::byte, kHeadBytes>;

struct ServerMessage {
  MessageCode code = MessageCode::kGoodbye;
  bool stop = false;
  SnapshotWant want = SnapshotWant::kNothing;
  int lost = 0;  // parameters: how many workers were lost before them (statistics tell who)
  int64_t clock = 0;
  uint64_t count = 0;  // elements of the body
  uint64_t bytes = 0;  // of the body; Link::send fills it in
  double rate = 0;
  double loss = 0;
  int64_t extra = 0;
};

HeadBytes encode(const ServerMessage& message);
// CommError, beginning with `peer`, where the bytes are no head of this version, or a field is out of range.
ServerMessage decode(std::span<const std::byte, kHeadBytes> head, const std::string& peer);
// CommError where the message is another, or its body has another length.
void expect(const ServerMessage& message, MessageCode code, const std::string& peer);
void expect_count(const ServerMessage& message, uint64_t count, const std::string& peer);
void expect_bytes(const ServerMessage& message, uint64_t bytes, const std::string& peer);

// The body of hello. Sizes are in elements.
struct ServerHello {
  uint64_t element_bytes = 0;
  std::vector<TensorShape> shapes;  // of the shard's partitions: a whole parameter's, or {1, n}
  std::vector<size_t> slots;        // those that the worker owns
};
std::vector<uint64_t> encode_hello(const ServerHello& hello);
ServerHello decode_hello(std::span<const uint64_t> body, const std::string& peer);

std::vector<int64_t> encode_stats(const TableStats& stats);
TableStats decode_stats(std::span<const int64_t> body, const std::string& peer);
std::vector<int64_t> encode_events(const std::vector<TableEvent>& events);
std::vector<TableEvent> decode_events(std::span<const int64_t> body, const std::string& peer);

}  // namespace starling
