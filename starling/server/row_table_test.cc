// Tests the rows of a shard and the rules of its clocks against a naive simulation, without messages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "starling/base/error.h"
#include "starling/server/local_row_store.h"
#include "starling/server/row_replay.h"
#include "starling/server/row_table.h"
#include "starling/testing/error_of.h"

namespace starling {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

RowTableOptions table_options(int workers, std::optional<int64_t> staleness, int32_t width = 9) {
  RowTableOptions options;
  options.width = width;
  options.workers = workers;
  options.staleness = staleness;
  return options;
}

// A batch with one row.
template <typename T>
BasicRowBatch<T> row_of(int64_t key, const std::vector<int32_t>& index, const std::vector<T>& value) {
  BasicRowBatch<T> batch;
  batch.begin_row(key);
  for (size_t i = 0; i < index.size(); ++i) batch.add(index[i], value[i]);
  return batch;
}

template <typename T>
std::vector<T> values_of(RowTable<T>& table, int64_t key) {
  const BasicRow<T> row = table.row(key);
  return {row.value.begin(), row.value.end()};
}

template <typename T>
NaiveRows<T> contents(RowTable<T>& table) {
  NaiveRows<T> out;
  table.for_each_from(std::numeric_limits<int64_t>::min(), [&](const BasicRow<T>& row) {
    for (size_t j = 0; j < row.index.size(); ++j) out[row.key][row.index[j]] = row.value[j];
    return true;
  });
  return out;
}

TEST(RowTable, ManyPushesEqualMapsOfMaps) {
  RowTable<int32_t> table(table_options(1, std::nullopt));
  NaiveRows<int32_t> expected;
  uint64_t most_dense = 0;
  for (int64_t step = 0; step < 400; ++step) {
    for (const NaiveChange& c : changes_of(1, 0, step, 20, 12, 9)) {
      if (c.change == 0) continue;
      table.push(0, 0, row_of<int32_t>(c.key, {c.index}, {c.change}));
      naive_add(expected, c.key, c.index, c.change);
    }
    ASSERT_EQ(contents(table), expected) << "step " << step;
    most_dense = std::max(most_dense, table.stats().dense_rows);
  }
  const RowTableStats stats = table.stats();
  EXPECT_EQ(stats.rows, expected.size());
  EXPECT_GT(most_dense, 3u);
  EXPECT_GE(stats.held_bytes, stats.rows * RowTable<int32_t>::kRowOverhead + stats.elements * 4);
}

TEST(RowTable, ARowIsDenseIfPairsWouldTakeMoreBytes) {
  StoredRow<int32_t> row;
  RowScratch<int32_t> scratch;
  const auto add = [&](int32_t index, int32_t change) {
    const auto batch = row_of<int32_t>(3, {index}, {change});
    row.add(batch.row(0), 9, scratch);
  };
  for (int32_t i = 0; i < 4; ++i) add(2 * i, 1);
  EXPECT_FALSE(row.dense());  // 4 pairs of 8 bytes against 9 elements of 4 bytes
  EXPECT_EQ(row.bytes(), 4u * 8);
  add(1, 1);
  EXPECT_TRUE(row.dense());
  EXPECT_EQ(row.bytes(), 9u * 4);
  add(0, -1), add(1, -1);
  EXPECT_TRUE(row.dense());
  EXPECT_EQ(row.count(), 3u);
  add(2, -1);
  EXPECT_FALSE(row.dense());  // 2 pairs take less than half of 36 bytes
  const BasicRow<int32_t> left = row.view(3, scratch);
  EXPECT_THAT(left.index, ElementsAre(4, 6));
  EXPECT_THAT(left.value, ElementsAre(1, 1));
}

TEST(RowTable, ASparseRowGrowsByAFactor) {
  StoredRow<int32_t> row;
  RowScratch<int32_t> scratch;
  int allocations = 0;
  for (int32_t i = 0; i < 1000; ++i) {
    const size_t before = row.bytes();
    const auto batch = row_of<int32_t>(3, {i}, {1});
    row.add(batch.row(0), 4000, scratch);
    allocations += row.bytes() != before ? 1 : 0;
    EXPECT_LE(row.bytes(), 2 * 8 * row.count());
  }
  EXPECT_LT(allocations, 25);
}

TEST(RowTable, ARowExistsWhileItHasElements) {
  RowTable<int32_t> table(table_options(1, std::nullopt));
  EXPECT_EQ(table.held_bytes(), 0u);
  EXPECT_THAT(values_of(table, -5), IsEmpty());
  EXPECT_EQ(table.stats().rows, 0u);  // a read creates no row
  table.push(0, 0, row_of<int32_t>(-5, {1, 8}, {4, -4}));
  EXPECT_THAT(values_of(table, -5), ElementsAre(4, -4));
  EXPECT_EQ(table.held_bytes(), RowTable<int32_t>::kRowOverhead + 2 * 8);
  table.push(0, 0, row_of<int32_t>(-5, {1}, {-4}));
  EXPECT_THAT(values_of(table, -5), ElementsAre(-4));
  table.push(0, 0, row_of<int32_t>(-5, {8}, {4}));
  EXPECT_EQ(table.stats().rows, 0u);
  EXPECT_EQ(table.held_bytes(), 0u);
}

TEST(RowTable, SynchronousPushesAreHeldUntilAllWorkersEndTheClock) {
  RowTable<int32_t> table(table_options(2, 0));
  table.push(0, 0, row_of<int32_t>(1, {0}, {5}));
  table.end_clock(0, 0);
  table.push(0, 1, row_of<int32_t>(1, {0}, {100}));  // of the next clock
  EXPECT_FALSE(table.may_read(0, 1));
  ASSERT_TRUE(table.may_read(1, 0));
  EXPECT_THAT(values_of(table, 1), IsEmpty());
  EXPECT_GT(table.held_bytes(), 0u);
  table.push(1, 0, row_of<int32_t>(1, {0}, {2}));
  table.end_clock(1, 0);
  EXPECT_TRUE(table.may_read(0, 1));
  EXPECT_THAT(values_of(table, 1), ElementsAre(7));
  table.end_clock(0, 1);
  table.leave(1);  // worker 1 holds up nothing any more
  EXPECT_THAT(values_of(table, 1), ElementsAre(107));
}

TEST(RowTable, SynchronousSumsAreThoseOfTheOrderOfTheWorkers) {
  const std::vector<float> change = {1e8f, 1.0f, -1e8f};
  std::vector<float> results;
  for (const std::vector<int>& order : {std::vector{0, 1, 2}, {2, 1, 0}, {1, 0, 2}}) {
    RowTable<float> table(table_options(3, 0));
    for (const int w : order)
      table.push(w, 0, row_of<float>(1, {0, 1}, {change[static_cast<size_t>(w)], 1.0f}));
    for (const int w : order) table.end_clock(w, 0);
    const std::vector<float> row = values_of(table, 1);
    results.push_back(row.size() == 1 ? 0.0f : row[0]);
  }
  EXPECT_THAT(results, ElementsAre((1e8f + 1.0f) - 1e8f, results[0], results[0]));
}

TEST(RowTable, AReadWaitsForWorkersThatAreMoreThanSClocksBehind) {
  RowTable<int32_t> table(table_options(2, 2));
  for (int64_t c = 0; c < 3; ++c) {
    ASSERT_TRUE(table.may_read(0, c));
    EXPECT_EQ(table.note_read(0), c);
    table.push(0, c, row_of<int32_t>(1, {0}, {1}));
    EXPECT_THAT(values_of(table, 1), ElementsAre(c + 1));  // the own push, at once
    table.end_clock(0, c);
  }
  EXPECT_FALSE(table.may_read(0, 3));
  EXPECT_EQ(table.slowest(), 1);
  table.end_clock(1, 0);
  EXPECT_TRUE(table.may_read(0, 3));
  EXPECT_EQ(table.stats().max_staleness, 2);
}

TEST(RowTable, ALostWorkerMakesTheRowsUseless) {
  RowTable<int32_t> table(table_options(3, 0));
  table.lose(1, "killed by signal 9");
  EXPECT_THAT(error_of([&] { table.may_read(0, 0); }),
              testing::AllOf(HasSubstr("worker 1 is lost"), HasSubstr("killed by signal 9")));
  try {
    table.may_read(0, 0);
    FAIL() << "the read was allowed";
  } catch (const CommError& error) {
    EXPECT_EQ(error.peer(), 1);
  }
  EXPECT_THROW(table.push(2, 0, {}), CommError);
  EXPECT_THROW(table.end_clock(2, 0), CommError);
}

TEST(RowTable, TheMemoryLimitIsAnErrorForEveryWorker) {
  RowTableOptions options = table_options(2, std::nullopt);
  options.memory_limit = 3 * (RowTable<int32_t>::kRowOverhead + 8);
  RowTable<int32_t> table(options);
  for (int64_t key = 0; key < 3; ++key) table.push(0, 0, row_of<int32_t>(key, {0}, {1}));
  EXPECT_EQ(table.held_bytes(), options.memory_limit);
  try {
    table.push(0, 0, row_of<int32_t>(3, {0}, {1}));
    FAIL() << "the fourth row was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kMemory);
    EXPECT_THAT(error.what(), HasSubstr("more than its limit of " + std::to_string(options.memory_limit)));
  }
  EXPECT_THAT(error_of([&] { table.may_read(1, 0); }), HasSubstr("more than its limit"));
}

TEST(RowTable, HeldPushesCountForTheMemoryLimit) {
  RowTableOptions options = table_options(2, 0);
  options.memory_limit = RowTable<int32_t>::kRowOverhead + 8;
  RowTable<int32_t> table(options);
  table.push(0, 0, row_of<int32_t>(1, {0}, {1}));
  table.push(1, 0, row_of<int32_t>(1, {0}, {1}));  // integers of all workers are held as one row
  EXPECT_EQ(table.held_bytes(), options.memory_limit);
  EXPECT_THROW(table.push(0, 0, row_of<int32_t>(2, {0}, {1})), Error);
}

TEST(RowTable, SumsThatOverflowAreErrors) {
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
  for (const std::vector<int32_t>& other : {std::vector<int32_t>{}, std::vector<int32_t>{0, 1, 2, 3, 4, 5}}) {
    RowTable<int32_t> table(table_options(1, std::nullopt));  // sparse and dense
    table.push(0, 0, row_of<int32_t>(6, other, std::vector<int32_t>(other.size(), 1)));
    table.push(0, 0, row_of<int32_t>(6, {8}, {kMost}));
    EXPECT_THAT(error_of([&] { table.push(0, 0, row_of<int32_t>(6, {8}, {1})); }),
                HasSubstr("element 8 of row 6 would be 2147483647 + 1"));
    EXPECT_THROW(table.may_read(0, 0), Error);
  }
  RowTable<int32_t> low(table_options(1, std::nullopt));
  const auto lowest = row_of<int32_t>(6, {8}, {std::numeric_limits<int32_t>::min()});
  low.push(0, 0, lowest);
  EXPECT_THROW(low.push(0, 0, lowest), Error);  // not zero
  RowTable<double> table(table_options(1, std::nullopt));
  table.push(0, 0, row_of<double>(6, {8}, {1e308}));
  EXPECT_THAT(error_of([&] { table.push(0, 0, row_of<double>(6, {8}, {1e308})); }), HasSubstr("not finite"));
}

TEST(RowTable, RequestsAtAnotherClockAndAfterGoodbyeAreRefused) {
  RowTable<int32_t> table(table_options(2, 0));
  EXPECT_THAT(error_of([&] { table.push(1, 9, {}); }), HasSubstr("worker 1 at clock 9; it is at clock 0"));
  EXPECT_THROW(table.end_clock(1, 1), CommError);
  EXPECT_THROW(table.may_read(1, -1), CommError);
  table.leave(1);
  EXPECT_THAT(error_of([&] { table.push(1, 0, {}); }), HasSubstr("has said goodbye"));
}

TEST(RowTable, OptionsThatCannotBeAreRefused) {
  for (const int32_t width : {0, kMaxRowWidth + 1})
    EXPECT_THROW(RowTable<int>(table_options(1, 0, width)), ConfigError);
  EXPECT_THROW(RowTable<int32_t>(table_options(0, 0)), ConfigError);
  EXPECT_THROW(RowTable<int32_t>(table_options(1, -1)), ConfigError);
}

TEST(RowDelta, IndicesComeInAnyOrderAndRepeatedly) {
  RowBatch out;
  const std::vector<int32_t> index = {7, 2, 7, 5, 2}, change = {1, 3, 4, 0, -3};
  append_delta<int32_t>({11, index, change}, 9, out);
  ASSERT_EQ(out.size(), 1u);
  EXPECT_EQ(out.row(0).key, 11);
  EXPECT_THAT(out.row(0).index, ElementsAre(7));
  EXPECT_THAT(out.row(0).value, ElementsAre(5));
  append_delta<int32_t>({12, std::span(index).first(1), std::span(change).subspan(3, 1)}, 9, out);
  EXPECT_EQ(out.size(), 1u);  // nothing was left
  const std::vector<int32_t> dense = {0, 0, 6};
  append_delta<int32_t>({13, {}, dense}, 3, out);
  EXPECT_THAT(out.row(1).index, ElementsAre(2));
}

TEST(RowDelta, ChangesThatDoNotFitTheTableAreRefused) {
  RowBatch out;
  const std::vector<int32_t> index = {1, 9}, low = {-1}, change = {1, 1};
  EXPECT_THAT(error_of([&] { append_delta<int32_t>({4, index, change}, 9, out); }),
              HasSubstr("row 4 has index 9; the indices are 0 … 8"));
  EXPECT_THROW(append_delta<int32_t>({4, low, std::span(change).first(1)}, 9, out), ConfigError);
  EXPECT_THROW(append_delta<int32_t>({4, low, change}, 9, out), ConfigError);
  EXPECT_THROW(append_delta<int32_t>({4, {}, change}, 9, out), ConfigError);
  const std::vector<double> wrong = {std::numeric_limits<double>::quiet_NaN()};
  BasicRowBatch<double> numbers;
  EXPECT_THROW(append_delta<double>({4, {}, wrong}, 1, numbers), Error);
}

TEST(LocalRowStore, DoesWhatADistributedStoreDoes) {
  RowTableOptions options = table_options(1, 0);
  options.totals = true;
  LocalRowStore store(options);
  NaiveRows<int32_t> expected;
  RowBatch rows;
  for (int64_t c = 0; c < 20; ++c) {
    const std::vector<NaiveChange> changes = changes_of(2, 0, c, 100, 30, 9);
    push_changes(store, changes);
    EXPECT_EQ(naive_scan(store), expected);
    store.clock();
    for (const NaiveChange& change : changes) {
      naive_add(expected, change.key, change.index, change.change);
      naive_add(expected, kTotalsKey, change.index, change.change);
    }
    ASSERT_EQ(naive_scan(store), expected);
  }
  store.pull(std::vector<int64_t>{kTotalsKey, 4, kTotalsKey}, rows);
  EXPECT_EQ(rows.size(), 3u);
  EXPECT_THAT(rows.row(0).value, testing::ElementsAreArray(rows.row(2).value));
  EXPECT_THAT(rows.row(1).index, IsEmpty());
  EXPECT_EQ(store.bytes_sent() + store.bytes_received(), 0u);
  EXPECT_EQ(store.clocks(), 20);
}

TEST(LocalRowStore, StartedPullsAreReadsOfTheirClock) {
  LocalRowStore store(table_options(1, std::nullopt));
  const std::vector<int32_t> index = {3}, change = {2};
  const std::vector<int64_t> key = {8};
  const std::vector<RowDelta> delta = {{8, index, change}};
  store.push(delta);
  const uint64_t first = store.start_pull(key);
  store.push(delta);
  const uint64_t second = store.start_pull(key);
  RowBatch rows;
  EXPECT_THAT(error_of([&] { store.wait(second, rows); }), HasSubstr("the oldest started pull is"));
  store.wait(first, rows);
  EXPECT_THAT(rows.row(0).value, ElementsAre(2));
  EXPECT_THROW(store.scan(0, [](const RowBatch&) {}), ConfigError);
  store.wait(second, rows);
  EXPECT_THAT(rows.row(0).value, ElementsAre(4));
  EXPECT_THROW(store.scan(1, [](const RowBatch&) {}), ConfigError);
}

TEST(LocalRowStore, TotalsAreNotPushedAndTheLimitIsEnforced) {
  RowTableOptions options = table_options(1, 0);
  options.totals = true;
  options.memory_limit = 2000;
  LocalRowStore store(options);
  const std::vector<int32_t> index = {3}, change = {2};
  EXPECT_THROW(store.push(std::vector<RowDelta>{{kTotalsKey, index, change}}), ConfigError);
  int64_t taken = 0;
  try {
    for (; taken < 1000; ++taken) store.push(std::vector<RowDelta>{{100 + taken, index, change}});
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kMemory);
  }
  EXPECT_GT(taken, 5);
  EXPECT_LT(taken, 1000);
}

TEST(LocalRowStore, APushThatThrewLeavesNoTotals) {
  RowTableOptions options = table_options(1, std::nullopt);
  options.totals = true;
  LocalRowStore store(options);
  const std::vector<int32_t> index = {3}, change = {2}, most = {std::numeric_limits<int32_t>::max()};
  EXPECT_THROW(store.push(std::vector<RowDelta>{{8, index, change}, {9, index, most}}), Error);
  store.push(std::vector<RowDelta>{{8, index, change}});
  RowBatch rows;
  store.pull(std::vector<int64_t>{kTotalsKey}, rows);
  EXPECT_THAT(rows.row(0).value, ElementsAre(2));
}

TEST(LocalRowStore, APullOverTheEndOfAClockHasTheRowsOfItsStart) {
  LocalRowStore store(table_options(1, 0));
  const std::vector<int32_t> index = {3}, change = {2};
  const std::vector<RowDelta> delta = {{8, index, change}};
  store.push(delta);
  const uint64_t first = store.start_pull(std::vector<int64_t>{8});
  store.push({});
  store.clock();
  RowBatch rows;
  store.wait(first, rows);
  EXPECT_THAT(rows.row(0).value, IsEmpty());
  store.pull(std::vector<int64_t>{8}, rows);
  EXPECT_THAT(rows.row(0).value, ElementsAre(2));
}

TEST(ShardOfKey, SpreadsKeysEvenly) {
  for (const int shards : {1, 2, 3, 8}) {
    std::vector<int> count(static_cast<size_t>(shards));
    for (int64_t key = -4000; key < 4000; ++key) ++count[static_cast<size_t>(shard_of_key(8 * key, shards))];
    for (const int c : count) EXPECT_NEAR(c, 8000.0 / shards, 4 * 90);  // four standard deviations of √8000
  }
}

}  // namespace
}  // namespace starling
