// Parses any bytes as bodies of the messages of row tables. The parser must refuse them with a CommError, or
// return rows that are equal after writing and parsing again, in at most as many bytes.
#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "starling/base/error.h"
#include "starling/server/row_message.h"
#include "tests/fuzz/input.h"

namespace starling {
namespace {

std::vector<std::byte> body_of(FuzzInput& input) {
  const std::string text = input.text(1 << 13);
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

template <typename T>
bool are_equal(const BasicRow<T>& a, const BasicRow<T>& b) {
  return a.key == b.key && std::ranges::equal(a.index, b.index) && std::ranges::equal(a.value, b.value);
}

template <typename T>
void read_rows(uint64_t count, int32_t width, const std::vector<std::byte>& body) {
  BasicRowBatch<T> rows, again;
  decode_keyed_rows(body, count, width, "peer", rows);
  require_property(rows.size() == count);
  RowWriter<T> writer(width, true);
  for (size_t i = 0; i < rows.size(); ++i) {
    const BasicRow<T> row = rows.row(i);
    require_property(row.index.empty() || (row.index.front() >= 0 && row.index.back() < width));
    require_property(std::ranges::adjacent_find(row.index, std::greater_equal<>()) == row.index.end());
    require_property(std::ranges::find(row.value, T{0}) == row.value.end());
    writer.append(row);
  }
  require_property(writer.body().size() <= body.size());
  decode_keyed_rows(writer.body(), count, width, "peer", again);
  for (size_t i = 0; i < rows.size(); ++i) require_property(are_equal(rows.row(i), again.row(i)));
}

void read_hello(FuzzInput& input) {
  const std::vector<std::byte> bytes = body_of(input);
  std::vector<uint64_t> body(bytes.size() / 8);
  if (!body.empty()) std::memcpy(body.data(), bytes.data(), 8 * body.size());
  RowTableOptions options;
  options.width = 7;
  check_row_hello(body, options, DataType::kInt32, "peer");
  require_property(body == encode_row_hello(options, DataType::kInt32));
}

// Rows without keys at places in descending order.
void read_rows_at(uint64_t count, int32_t width, const std::vector<std::byte>& body) {
  std::vector<size_t> places;
  std::vector<int64_t> keys;
  for (uint64_t i = 0; i < count; ++i) {
    places.push_back(count - 1 - i);
    keys.push_back(static_cast<int64_t>(3 * i));
  }
  BasicRowBatch<int32_t> rows, again;
  rows.reset(count), again.reset(count);
  decode_rows_at<int32_t>(body, width, "peer", places, keys, rows);
  RowWriter<int32_t> writer(width, false);
  for (const size_t place : places) writer.append(rows.row(place));
  require_property(writer.body().size() <= body.size());
  decode_rows_at<int32_t>(writer.body(), width, "peer", places, keys, again);
  for (size_t i = 0; i < count; ++i) {
    require_property(rows.row(i).key == keys[i]);
    require_property(are_equal(rows.row(i), again.row(i)));
  }
}

void read_any(int kind, FuzzInput& input) {
  if (kind == 5) return read_hello(input);
  const uint64_t count = input.byte();
  const int32_t width = 1 + input.number() % 300;
  const std::vector<std::byte> body = body_of(input);
  if (kind == 0) return read_rows<int32_t>(count, width, body);
  if (kind == 1) return read_rows<int64_t>(count, width, body);
  if (kind == 2) return read_rows<float>(count, width, body);
  if (kind == 3) return read_rows<double>(count, width, body);
  if (kind == 6) return read_rows_at(count, width, body);
  require_property(encode_row_keys(decode_row_keys(body, count, "peer")) == body);
}

}  // namespace
}  // namespace starling

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace starling;
  FuzzInput input(data, size);
  const int kind = input.byte() % 7;
  try {
    read_any(kind, input);
  } catch (const CommError&) {
  }
  return 0;
}
