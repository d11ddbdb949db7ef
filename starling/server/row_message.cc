#include "starling/server/row_message.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "starling/base/error.h"
#include "starling/net/wire.h"

namespace starling {
namespace {

// The longest variable-length integer.
constexpr size_t kMostVarint = 10;

[[noreturn]] void refuse_rows(const std::string& peer, const std::string& why) {
  throw CommError(fmt::format("{} sent an invalid message of a row table: {}", peer, why));
}

template <typename T>
constexpr size_t most_value_bytes() {
  if constexpr (std::is_integral_v<T>) {
    return varint_bytes(std::numeric_limits<std::make_unsigned_t<T>>::max());
  } else {
    return sizeof(T);
  }
}

template <typename T>
size_t value_bytes(T value) {
  if constexpr (std::is_integral_v<T>) return varint_bytes(zigzag(value));
  return sizeof(T);
}

template <typename T>
size_t sparse_size(const BasicRow<T>& row) {
  size_t bytes = varint_bytes(2 * static_cast<uint64_t>(row.index.size()));
  int32_t next = 0;
  for (size_t j = 0; j < row.index.size(); ++j) {
    bytes += varint_bytes(static_cast<uint64_t>(row.index[j] - next)) + value_bytes(row.value[j]);
    next = row.index[j] + 1;
  }
  return bytes;
}

template <typename T>
size_t dense_size(const BasicRow<T>& row, int32_t width) {
  const size_t zeros = static_cast<size_t>(width) - row.index.size();
  size_t bytes = 1 + zeros * value_bytes(T{0});
  for (const T value : row.value) bytes += value_bytes(value);
  return bytes;
}

void put_varint(std::vector<std::byte>& out, uint64_t x) {
  for (; x >= 128; x >>= 7) out.push_back(static_cast<std::byte>(x | 128));
  out.push_back(static_cast<std::byte>(x));
}

template <typename T>
void put_value(std::vector<std::byte>& out, T value) {
  if constexpr (std::is_integral_v<T>) {
    put_varint(out, zigzag(value));
  } else {
    std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t> bits;
    std::memcpy(&bits, &value, sizeof(T));
    out.resize(out.size() + sizeof(T));
    store_le(out.data() + out.size() - sizeof(T), bits);
  }
}

// Reads a body from the front and refuses what no RowWriter writes.
class BodyReader {
 public:
  BodyReader(std::span<const std::byte> body, const std::string& peer) : rest_(body), peer_(peer) {}

  uint64_t varint() {
    uint64_t x = 0;
    for (size_t i = 0; i < kMostVarint; ++i) {
      const auto byte = static_cast<uint64_t>(take(1)[0]);
      if (i == kMostVarint - 1 && byte > 1) refuse_rows(peer_, "an integer of more than 64 bits");
      x |= (byte & 127) << (7 * i);
      if (byte >= 128) continue;
      if (byte == 0 && i > 0) refuse_rows(peer_, "an integer with a leading zero");
      return x;
    }
    refuse_rows(peer_, "an integer of more than 64 bits");
  }

  template <typename T>
  T value() {
    if constexpr (std::is_integral_v<T>) {
      const uint64_t z = varint();
      const auto x = static_cast<int64_t>((z >> 1) ^ (~(z & 1) + 1));
      if (x < std::numeric_limits<T>::min() || x > std::numeric_limits<T>::max())
        refuse_rows(peer_, fmt::format("the value {}, which {} bits cannot hold", x, 8 * sizeof(T)));
      return static_cast<T>(x);
    } else {
      using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
      const Bits bits = load_le<Bits>(take(sizeof(T)).data());
      T x;
      std::memcpy(&x, &bits, sizeof(T));
      if (!std::isfinite(x)) refuse_rows(peer_, fmt::format("the value {}", x));
      return x;
    }
  }

  template <typename T>
  void row(int32_t width, BasicRowBatch<T>& out) {
    const uint64_t head = varint();
    if (head == 1) return dense_row(width, out);
    const uint64_t count = head / 2;
    if (head % 2 == 1 || count > static_cast<uint64_t>(width))
      refuse_rows(peer_, fmt::format("a row that begins with {}; the table has {} columns", head, width));
    int64_t next = 0;
    for (uint64_t j = 0; j < count; ++j) {
      const uint64_t gap = varint();
      if (gap >= static_cast<uint64_t>(width - next))
        refuse_rows(peer_, fmt::format("index {} + {}; the table has {} columns", next, gap, width));
      const auto index = static_cast<int32_t>(next + static_cast<int64_t>(gap));
      const T x = value<T>();
      if (x == 0) refuse_rows(peer_, "a zero in a sparse row");
      out.add(index, x);
      next = index + 1;
    }
  }

  void end() const {
    if (!rest_.empty()) refuse_rows(peer_, fmt::format("{} bytes after the last row or key", rest_.size()));
  }

 private:
  template <typename T>
  void dense_row(int32_t width, BasicRowBatch<T>& out) {
    for (int32_t i = 0; i < width; ++i) {
      if (const T x = value<T>(); x != 0) out.add(i, x);
    }
  }

  std::span<const std::byte> take(size_t bytes) {
    if (rest_.size() < bytes) refuse_rows(peer_, "a body that ends within a row or key");
    const auto taken = rest_.first(bytes);
    rest_ = rest_.subspan(bytes);
    return taken;
  }

  std::span<const std::byte> rest_;
  const std::string& peer_;
};

int64_t next_key(BodyReader& reader, int64_t previous) {
  const uint64_t z = reader.varint();
  return static_cast<int64_t>(static_cast<uint64_t>(previous) + ((z >> 1) ^ (~(z & 1) + 1)));
}

std::string staleness_text(uint64_t word) {
  return word == 0 ? "inf" : fmt::format("{}", word - 1);
}

}  // namespace

template <typename T>
size_t row_bytes(const BasicRow<T>& row, int32_t width) {
  return std::min(sparse_size(row), dense_size(row, width));
}

template <typename T>
size_t most_row_bytes(uint64_t count, int32_t width) {
  const size_t row = kMostVarint + 1 + static_cast<size_t>(width) * most_value_bytes<T>();
  const size_t cut = kRowMessageBytes - 1 + row;
  return count >= cut / row ? cut : static_cast<size_t>(count) * row;
}

template <typename T>
void RowWriter<T>::append(const BasicRow<T>& row) {
  if (keyed_) put_varint(body_, key_step(row.key, key_));
  key_ = row.key;
  ++count_;
  if (sparse_size(row) <= dense_size(row, width_)) {
    put_varint(body_, 2 * static_cast<uint64_t>(row.index.size()));
    int32_t next = 0;
    for (size_t j = 0; j < row.index.size(); ++j) {
      put_varint(body_, static_cast<uint64_t>(row.index[j] - next));
      put_value(body_, row.value[j]);
      next = row.index[j] + 1;
    }
    return;
  }
  put_varint(body_, 1);
  size_t j = 0;
  for (int32_t i = 0; i < width_; ++i)
    put_value(body_, j < row.index.size() && row.index[j] == i ? row.value[j++] : T{0});
}

template <typename T>
void decode_keyed_rows(std::span<const std::byte> body, uint64_t count, int32_t width,
                       const std::string& peer, BasicRowBatch<T>& out) {
  BodyReader reader(body, peer);
  int64_t key = 0;
  for (uint64_t i = 0; i < count; ++i) {
    key = next_key(reader, key);
    out.begin_row(key);
    reader.row(width, out);
  }
  reader.end();
}

template <typename T>
void decode_rows_at(std::span<const std::byte> body, int32_t width, const std::string& peer,
                    std::span<const size_t> places, std::span<const int64_t> keys, BasicRowBatch<T>& out) {
  BodyReader reader(body, peer);
  for (const size_t place : places) {
    out.begin_row_at(place, keys[place]);
    reader.row(width, out);
  }
  reader.end();
}

std::vector<std::byte> encode_row_keys(std::span<const int64_t> keys) {
  std::vector<std::byte> out;
  int64_t previous = 0;
  for (const int64_t key : keys) {
    put_varint(out, key_step(key, previous));
    previous = key;
  }
  return out;
}

std::vector<int64_t> decode_row_keys(std::span<const std::byte> body, uint64_t count,
                                     const std::string& peer) {
  if (count > body.size()) refuse_rows(peer, fmt::format("{} keys in {} bytes", count, body.size()));
  BodyReader reader(body, peer);
  std::vector<int64_t> keys;
  keys.reserve(count);
  for (uint64_t i = 0; i < count; ++i) keys.push_back(next_key(reader, keys.empty() ? 0 : keys.back()));
  reader.end();
  return keys;
}

std::vector<uint64_t> encode_row_hello(const RowTableOptions& options, DataType type) {
  return {static_cast<uint64_t>(type), static_cast<uint64_t>(options.width),
          static_cast<uint64_t>(options.workers),
          options.staleness ? static_cast<uint64_t>(*options.staleness) + 1 : 0, options.totals ? 1u : 0u};
}

void check_row_hello(std::span<const uint64_t> body, const RowTableOptions& options, DataType type,
                     const std::string& peer) {
  const std::vector<uint64_t> here = encode_row_hello(options, type);
  static constexpr const char* kNames[] = {"type of elements", "width", "number of workers", "staleness",
                                           "totals"};
  if (body.size() != here.size()) refuse_rows(peer, fmt::format("a hello of {} numbers", body.size()));
  for (size_t i = 0; i < here.size(); ++i) {
    if (body[i] == here[i]) continue;
    const auto text = [&](uint64_t word) {
      if (i == 0) return std::string(word <= 8 ? name_of(static_cast<DataType>(word)) : "?");
      return i == 3 ? staleness_text(word) : fmt::format("{}", word);
    };
    throw CommError(
        fmt::format("{} has another table: its {} is {}, not {}; give all processes equal options", peer,
                    kNames[i], text(body[i]), text(here[i])));
  }
}

#define STARLING_ROW_MESSAGE(T)                                                                      \
  template size_t row_bytes(const BasicRow<T>&, int32_t);                                            \
  template size_t most_row_bytes<T>(uint64_t, int32_t);                                              \
  template class RowWriter<T>;                                                                       \
  template void decode_keyed_rows(std::span<const std::byte>, uint64_t, int32_t, const std::string&, \
                                  BasicRowBatch<T>&);                                                \
  template void decode_rows_at(std::span<const std::byte>, int32_t, const std::string&,              \
                               std::span<const size_t>, std::span<const int64_t>, BasicRowBatch<T>&)

STARLING_ROW_MESSAGE(int32_t);
STARLING_ROW_MESSAGE(int64_t);
STARLING_ROW_MESSAGE(float);
STARLING_ROW_MESSAGE(double);
#undef STARLING_ROW_MESSAGE

}  // namespace starling
