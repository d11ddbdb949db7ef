// The bodies of the messages of row tables. Their heads are those of protocol.h.
//
//   worker → server   count      body                                     answer
//   row hello         5          type, width, workers, staleness, totals  welcome
//   row push          rows       keyed rows                               –
//   row pull          keys       keys                                     rows, in the order of the keys
//   row clock         0          –                                        –
//   row scan          1          the least key (i64)                      keyed rows; stop = the last slice
//   goodbye           0          –                                        –
//
// Every head has the worker's clock. Answers have extra = staleness. A long push or answer is several
// messages: a message is closed when its body has kRowMessageBytes or its count is kRowMessageCount.
//
// Bytes. v(x) is the length of the variable-length integer x: 1 + ⌊log2 x⌋ / 7 in whole numbers, and 1 for 0.
// z(x) is 2x for x ≥ 0 and −2x − 1 for x < 0. A value x takes e(x) bytes: v(z(x)) for integers, sizeof(T) for
// floating-point numbers. A row with n elements at i_1 < … < i_n, and i_0 = −1, takes the smaller of
//
//   sparse   v(2n) + Σ_j [ v(i_j − i_{j−1} − 1) + e(x_j) ]
//   dense    1 + Σ over all `width` elements of e(x)
//
// The key of a keyed row takes v(z(key − the previous key)) more. The previous key of the first one is 0. So
// a count below 64 in a table of at most 128 columns takes 2 bytes, and at most 3 bytes up to 16,384 columns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "starling/server/row_batch.h"
#include "starling/server/row_options.h"

namespace starling {

// The body of a message is closed when it has so many bytes.
inline constexpr size_t kRowMessageBytes = size_t{1} << 20;
// The most rows or keys in a message.
inline constexpr size_t kRowMessageCount = size_t{1} << 16;
// The number of u64 in the body of a row hello.
inline constexpr size_t kRowHelloCount = 5;

// Returns v(x).
constexpr size_t varint_bytes(uint64_t x) {
  size_t bytes = 1;
  while (x >>= 7) ++bytes;
  return bytes;
}
// Returns z(x).
constexpr uint64_t zigzag(int64_t x) {
  return (static_cast<uint64_t>(x) << 1) ^ static_cast<uint64_t>(x >> 63);
}
// Returns the difference of two keys, which may wrap, as z() of it.
constexpr uint64_t key_step(int64_t key, int64_t previous) {
  return zigzag(static_cast<int64_t>(static_cast<uint64_t>(key) - static_cast<uint64_t>(previous)));
}

// Returns the bytes of a row without its key. The row has ascending indices and no zeros.
template <typename T>
size_t row_bytes(const BasicRow<T>& row, int32_t width);
// Returns the most bytes that the body of a message with `count` rows or keys may have.
template <typename T>
size_t most_row_bytes(uint64_t count, int32_t width);

// RowWriter makes the body of one message of rows.
template <typename T>
class RowWriter {
 public:
  // keyed: whether the rows have their keys.
  RowWriter(int32_t width, bool keyed) : width_(width), keyed_(keyed) {}
  // Appends a row. The row has ascending indices and no zeros.
  void append(const BasicRow<T>& row);
  // Returns whether the message must be sent before the next row.
  bool full() const { return body_.size() >= kRowMessageBytes || count_ >= kRowMessageCount; }
  // Returns the number of rows.
  size_t count() const { return count_; }
  // Returns the body.
  std::span<const std::byte> body() const { return body_; }
  // Removes all rows and keeps the memory.
  void clear() { body_.clear(), count_ = 0, key_ = 0; }

 private:
  int32_t width_;
  bool keyed_;
  size_t count_ = 0;
  int64_t key_ = 0;  // the previous key
  std::vector<std::byte> body_;
};

// Appends `count` keyed rows to `out`. Errors: CommError that begins with `peer` if the body is not exactly
// so many rows of the table.
template <typename T>
void decode_keyed_rows(std::span<const std::byte> body, uint64_t count, int32_t width,
                       const std::string& peer, BasicRowBatch<T>& out);
// Decodes rows without keys. Row i has key keys[places[i]] and is written to out.row(places[i]). Errors: as
// decode_keyed_rows().
template <typename T>
void decode_rows_at(std::span<const std::byte> body, int32_t width, const std::string& peer,
                    std::span<const size_t> places, std::span<const int64_t> keys, BasicRowBatch<T>& out);

// Encodes the keys of a row pull.
std::vector<std::byte> encode_row_keys(std::span<const int64_t> keys);
// Decodes the keys of a row pull. Errors: CommError that begins with `peer`.
std::vector<int64_t> decode_row_keys(std::span<const std::byte> body, uint64_t count,
                                     const std::string& peer);

// What a worker says about its table. Both sides must have equal options.
std::vector<uint64_t> encode_row_hello(const RowTableOptions& options, DataType type);
// Throws CommError that begins with `peer` and names the first difference, if the table of the server is
// another one.
void check_row_hello(std::span<const uint64_t> body, const RowTableOptions& options, DataType type,
                     const std::string& peer);

}  // namespace starling
