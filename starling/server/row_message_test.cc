// Tests the messages of row tables: what is decoded equals what was encoded, the length is that of the
// formula, and what no writer writes is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "starling/base/error.h"
#include "starling/server/row_message.h"
#include "starling/server/row_replay.h"
#include "starling/testing/error_of.h"

namespace starling {
namespace {

using testing::HasSubstr;

std::vector<std::byte> body_of(const std::vector<int>& bytes) {
  std::vector<std::byte> out;
  for (const int b : bytes) out.push_back(static_cast<std::byte>(b));
  return out;
}

// Rows of every length with keys at both ends.
template <typename T>
BasicRowBatch<T> some_rows(int32_t width, const std::vector<T>& values) {
  BasicRowBatch<T> batch;
  int64_t key = std::numeric_limits<int64_t>::min();
  for (int32_t n = 0; n <= width; ++n) {
    batch.begin_row(key);
    for (int32_t i = 0; i < n; ++i)
      batch.add(width - n + i, values[static_cast<size_t>(n + i) % values.size()]);
    key = n % 2 == 0 ? std::numeric_limits<int64_t>::max() - n : n;
  }
  return batch;
}

template <typename T>
void expect_round_trip(int32_t width, const std::vector<T>& values) {
  const BasicRowBatch<T> rows = some_rows(width, values);
  RowWriter<T> keyed(width, true), bare(width, false);
  std::vector<size_t> places;
  std::vector<int64_t> keys(rows.size());
  size_t bytes = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    keyed.append(rows.row(i));
    const size_t before = bare.body().size();
    bare.append(rows.row(i));
    EXPECT_EQ(bare.body().size() - before, row_bytes(rows.row(i), width));
    bytes += row_bytes(rows.row(i), width);
    places.push_back(rows.size() - 1 - i);
    keys[places.back()] = rows.row(i).key;
  }
  EXPECT_EQ(bare.body().size(), bytes);
  EXPECT_LE(keyed.body().size(), most_row_bytes<T>(rows.size(), width));
  BasicRowBatch<T> again, reversed;
  decode_keyed_rows(keyed.body(), keyed.count(), width, "peer", again);
  reversed.reset(rows.size());
  decode_rows_at<T>(bare.body(), width, "peer", places, keys, reversed);
  ASSERT_EQ(again.size(), rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    for (const BasicRow<T>& row : {again.row(i), reversed.row(places[i])}) {
      EXPECT_EQ(row.key, rows.row(i).key);
      EXPECT_THAT(row.index, testing::ElementsAreArray(rows.row(i).index));
      EXPECT_THAT(row.value, testing::ElementsAreArray(rows.row(i).value));
    }
  }
}

TEST(RowMessage, RowsOfEveryTypeAndLengthAreDecodedAsTheyWere) {
  using Limits32 = std::numeric_limits<int32_t>;
  using Limits64 = std::numeric_limits<int64_t>;
  for (const int32_t width : {1, 9, 200}) {
    expect_round_trip<int32_t>(width, {1, -1, 63, 64, -64, -65, Limits32::max(), Limits32::min()});
    expect_round_trip<int64_t>(width, {1, -1, 1 << 20, Limits64::max(), Limits64::min()});
    expect_round_trip<float>(width, {1.5f, -0.25f, 3e38f});
    expect_round_trip<double>(width, {1.5, -0.25, 1e308});
  }
}

TEST(RowMessage, TheLengthIsThatOfTheFormula) {
  for (const int32_t width : {5, 130, 20'000}) {
    for (int64_t clock = 0; clock < 30; ++clock) {
      NaiveRows<int32_t> rows;
      const int count = static_cast<int>(1 + clock * clock / 4);
      for (const NaiveChange& c : changes_of(3, 0, clock, count, 1, width))
        naive_add(rows, 1, c.index, c.change * 50);
      if (rows.empty()) continue;
      RowBatch batch;
      batch.begin_row(1);
      for (const auto& [index, value] : rows[1]) batch.add(index, value);
      EXPECT_EQ(row_bytes(batch.row(0), width), naive_row_bytes(rows[1], width));
    }
  }
  EXPECT_EQ(varint_bytes(127), 1u);
  EXPECT_EQ(varint_bytes(128), 2u);
  EXPECT_EQ(varint_bytes(~uint64_t{0}), 10u);
  EXPECT_EQ(zigzag(std::numeric_limits<int64_t>::min()), ~uint64_t{0});
}

TEST(RowMessage, ACountTakesTwoBytes) {
  RowWriter<int32_t> writer(128, false);
  RowBatch batch;
  batch.begin_row(0);
  for (int32_t i = 0; i < 20; ++i) batch.add(6 * i, i + 1);
  writer.append(batch.row(0));
  EXPECT_EQ(writer.body().size(), 1 + 20u * 2);  // 160 bytes as pairs of 32-bit numbers
}

TEST(RowMessage, MessagesAreClosedAtTheirLength) {
  RowWriter<double> writer(1000, true);
  BasicRowBatch<double> batch;
  batch.begin_row(1);
  for (int32_t i = 0; i < 1000; ++i) batch.add(i, 1.5);
  size_t count = 0;
  while (!writer.full()) writer.append(batch.row(0)), ++count;
  EXPECT_EQ(count, (kRowMessageBytes + 8001) / 8002);  // 1000 elements, a byte for dense, and one for the key
  EXPECT_LE(writer.body().size(), most_row_bytes<double>(count, 1000));
  EXPECT_LT(most_row_bytes<double>(kRowMessageCount, 1000), kRowMessageBytes + 8100);
}

TEST(RowMessage, KeysAreDecodedAsTheyWere) {
  const std::vector<int64_t> keys = {
      0, -1, std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min(), 5, 6, 7};
  const std::vector<std::byte> body = encode_row_keys(keys);
  EXPECT_EQ(decode_row_keys(body, keys.size(), "peer"), keys);
  EXPECT_THROW(decode_row_keys(body, keys.size() - 1, "peer"), CommError);
  EXPECT_THROW(decode_row_keys(body, keys.size() + 1, "peer"), CommError);
  EXPECT_THROW(decode_row_keys(body, uint64_t{1} << 60, "peer"), CommError);
}

template <typename T = int32_t>
std::string row_fault(const std::vector<int>& bytes, uint64_t count = 1) {
  BasicRowBatch<T> out;
  const std::vector<std::byte> body = body_of(bytes);
  return error_of([&] { decode_keyed_rows(body, count, 3, "worker 1", out); });
}

TEST(RowMessage, WhatNoWriterWritesIsRefused) {
  EXPECT_EQ(row_fault({0, 2, 2, 5}), "");  // key 0, one element, at index 2, −3
  EXPECT_THAT(row_fault({0, 2, 3, 5}), HasSubstr("worker 1 sent an invalid message of a row table: index"));
  EXPECT_THAT(row_fault({0, 4, 2, 5, 0, 5}), HasSubstr("index 3 + 0"));
  EXPECT_THAT(row_fault({0, 8}), HasSubstr("a row that begins with 8"));
  EXPECT_THAT(row_fault({0, 3}), HasSubstr("a row that begins with 3"));
  EXPECT_THAT(row_fault({0, 2, 2, 0}), HasSubstr("a zero in a sparse row"));
  EXPECT_THAT(row_fault({0, 2, 2}), HasSubstr("ends within a row"));
  EXPECT_THAT(row_fault({0, 1, 0, 0}), HasSubstr("ends within a row"));
  EXPECT_THAT(row_fault({0, 2, 2, 5, 9}), HasSubstr("1 bytes after the last row"));
  EXPECT_THAT(row_fault({0, 2, 2, 0x85, 0}), HasSubstr("a leading zero"));
  EXPECT_THAT(row_fault({0, 2, 2, 0x80, 0x80, 0x80, 0x80, 0x10}), HasSubstr("which 32 bits cannot hold"));
  EXPECT_THAT(row_fault({0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2}),
              HasSubstr("more than 64 bits"));
  EXPECT_THAT(row_fault<float>({0, 2, 2, 0, 0, 0x80, 0x7f}), HasSubstr("the value inf"));
  EXPECT_THAT(row_fault({}, 1), HasSubstr("ends within a row"));
}

TEST(RowMessage, AHelloOfAnotherTableIsRefusedByName) {
  RowTableOptions here;
  here.width = 7;
  here.workers = 2;
  const auto fault = [&](const RowTableOptions& there, DataType type) {
    const std::vector<uint64_t> body = encode_row_hello(there, type);
    return error_of([&] { check_row_hello(body, here, DataType::kInt32, "worker 1"); });
  };
  EXPECT_EQ(fault(here, DataType::kInt32), "");
  EXPECT_THAT(fault(here, DataType::kFp32), HasSubstr("its type of elements is fp32, not int32"));
  RowTableOptions there = here;
  there.width = 8;
  EXPECT_THAT(fault(there, DataType::kInt32), HasSubstr("its width is 8, not 7"));
  there = here;
  there.staleness.reset();
  EXPECT_THAT(fault(there, DataType::kInt32), HasSubstr("its staleness is inf, not 0"));
  there = here;
  there.totals = true;
  EXPECT_THAT(fault(there, DataType::kInt32), HasSubstr("its totals is 1, not 0"));
  there = here;
  there.workers = 3;
  EXPECT_THAT(fault(there, DataType::kInt32), HasSubstr("number of workers is 3, not 2"));
  const std::vector<uint64_t> wrong = {99, 7, 2, 1, 0}, short_one = {1};
  EXPECT_THAT(error_of([&] { check_row_hello(wrong, here, DataType::kInt32, "w"); }), HasSubstr("is ?, not"));
  EXPECT_THAT(error_of([&] { check_row_hello(short_one, here, DataType::kInt32, "w"); }),
              HasSubstr("a hello of 1 numbers"));
}

}  // namespace
}  // namespace starling
