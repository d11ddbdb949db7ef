// The messages between workers and server shards. A message is a head of 56 bytes and a body. The receiver
// knows the number of elements in the body, or at least a bound, before the body arrives. It refuses a head
// that announces another number, before it allocates memory.
//
//   head  magic u32 | kind u16 | flags u16 | clock i64 | count u64 | bytes u64 |
//         rate f64 | loss f64 | extra i64
//   body  count elements in `bytes` bytes: T (values or a codec's message), u64 (hello), i64 (reports)
//   All numbers are little-endian.
//
//   worker → server           body                                       answer
//   hello                     shape of the shard, partitions owned       welcome: extra = states of the rule
//   load       extra updates  parameters [and states] that it owns       –
//   push       clock, rate = lr, loss, stop     gradient                 –
//              extra = weight of its mean (the bits of an f64)
//   pull       clock, extra = loads to wait for                          parameters: clock, loss, stop, lost,
//                                                                                    extra = staleness,
//                                                                                    rate = clock to stop at
//   snapshot   want                                                      parameters, extra = updates
//   statistics, events                                                   report
//   goodbye                                                              –
//
// row_message.h has the messages of row tables.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "starling/codec/codec.h"
#include "starling/server/server_table_stats.h"

namespace starling {

// The kind of a message. The first eight are requests of workers, and the next three are answers of servers.
// The last six are those of row tables (row_message.h), which also use goodbye and welcome.
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
  kReport,
  kRowHello,
  kRowPush,
  kRowPull,
  kRowClock,
  kRowScan,
  kRows
};
// Returns the name of a kind, for messages.
const char* name_of(MessageCode code);

// What a worker receives of a snapshot: nothing, its own partitions, or the whole shard with the optimizer's
// states.
enum class SnapshotWant : uint16_t { kNothing, kOwn, kWhole };

// Bytes of a head.
inline constexpr size_t kHeadBytes = 56;
// Largest number of elements in a body. decode() refuses larger ones.
inline constexpr uint64_t kMaxElements = uint64_t{1} << 40;
// Largest number of elements in the body of a report.
inline constexpr uint64_t kMaxReport = uint64_t{1} << 24;

// An encoded head.
using HeadBytes = std::array<std::byte, kHeadBytes>;

// A decoded head. Fields that the kind does not use are zero.
struct ServerMessage {
  MessageCode code = MessageCode::kGoodbye;
  bool stop = false;
  SnapshotWant want = SnapshotWant::kNothing;
  // Parameters: how many workers had been lost before. The statistics tell which workers.
  int lost = 0;
  int64_t clock = 0;
  uint64_t count = 0;  // elements of the body
  uint64_t bytes = 0;  // bytes of the body; Link::send fills this in
  double rate = 0;
  double loss = 0;
  int64_t extra = 0;
};

// Encodes a head.
HeadBytes encode(const ServerMessage& message);
// Decodes a head. Errors: CommError that begins with `peer`, if the bytes are no head of this version or a
// field is out of range.
ServerMessage decode(std::span<const std::byte, kHeadBytes> head, const std::string& peer);
// Throws CommError if the message has another kind.
void expect(const ServerMessage& message, MessageCode code, const std::string& peer);
// Throws CommError if the body has another number of elements.
void expect_count(const ServerMessage& message, uint64_t count, const std::string& peer);
// Throws CommError if the body has another number of bytes.
void expect_bytes(const ServerMessage& message, uint64_t bytes, const std::string& peer);

// The body of hello. Sizes are in elements.
struct ServerHello {
  uint64_t element_bytes = 0;          // bytes of one element of a parameter
  std::vector<TensorShape> shapes;     // of the shard's partitions: the shape of a whole parameter, or {1, n}
  std::vector<size_t> own_partitions;  // those that the worker owns, as indices into shapes
};
// Encodes the body of hello.
std::vector<uint64_t> encode_hello(const ServerHello& hello);
// Decodes the body of hello. Errors: CommError that begins with `peer`.
ServerHello decode_hello(std::span<const uint64_t> body, const std::string& peer);

// Encodes the counts of a shard as the body of a report.
std::vector<int64_t> encode_stats(const ServerTableStats& stats);
// Decodes the counts of a shard. Errors: CommError that begins with `peer`.
ServerTableStats decode_stats(std::span<const int64_t> body, const std::string& peer);
// Encodes recorded events as the body of a report.
std::vector<int64_t> encode_events(const std::vector<ServerTableEvent>& events);
// Decodes recorded events. Errors: CommError that begins with `peer`.
std::vector<ServerTableEvent> decode_events(std::span<const int64_t> body, const std::string& peer);

}  // namespace starling
