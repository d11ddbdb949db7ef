// Compares the choice of rows by progress with plain loops, and counts the updates that it saves.
#include "starling/factor/row_priority.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <numeric>
#include <string>
#include <vector>

#include "starling/base/error.h"
#include "starling/base/keyed_random.h"
#include "starling/comm/bootstrap.h"
#include "starling/factor/factorize.h"
#include "starling/job/job_checkpoint.h"
#include "starling/testing/join_group.h"
#include "starling/testing/run_ranks.h"
#include "starling/testing/temp_dir.h"

namespace starling {
namespace {

using Matrix = std::vector<std::vector<double>>;

constexpr int64_t kRows = 120, kColumns = 30, kPerRow = 10;

// Each eighth row is unlike all others: its values depend on the column.
class UnevenRatings final : public RatingSource {
 public:
  UnevenRatings() {
    for (int64_t i = 0; i < kRows; ++i)
      for (int64_t t = 0; t < kPerRow; ++t) {
        const int64_t j = (7 * i + 3 * t) % kColumns;
        const double wave = std::sin(static_cast<double>(i)) * std::cos(1.3 * static_cast<double>(j));
        entries_.push_back({static_cast<uint32_t>(i), static_cast<uint32_t>(j),
                            static_cast<float>(i % 8 == 0 ? 3 + 3 * wave : 3)});
      }
  }
  int64_t rows() const override { return kRows; }
  int64_t columns() const override { return kColumns; }
  int64_t count() const override { return std::ssize(entries_); }
  double mean() const override {
    double sum = 0;
    for (const Rating& entry : entries_) sum += entry.value;
    return sum / static_cast<double>(entries_.size());
  }
  void visit(const Take& take) const override { take(entries_); }
  const std::vector<Rating>& entries() const { return entries_; }

 private:
  std::vector<Rating> entries_;
};

FactorizeOptions options_of(double share, int64_t epochs) {
  FactorizeOptions options;
  options.factors = 4, options.epochs = epochs, options.lr = 0.03, options.lr_decay = 1, options.l2 = 0.01;
  options.test_share = 0, options.seed = 21, options.row_share = share;
  return options;
}

struct Rotated {
  std::vector<double> w = std::vector<double>(kRows * 4), h = std::vector<double>(kColumns * 4);
  FactorizeResult result;  // of rank 0
};

Rotated rotate(int ranks, const FactorizeOptions& options, const std::string& checkpoint = "") {
  const UnevenRatings source;
  Rotated rotated;
  std::mutex mutex;
  run_ranks(ranks, [&](const ThreadRank& self) {
    const auto group = ranks == 1 ? make_single_group() : join_group(*self.store, self.rank, ranks);
    MemoryBudget budget;
    const SystemClock clock;
    FactorizeParts parts{*group, source, budget, clock, {}};
    parts.checkpoint = checkpoint;
    const FactorizeResult result =
        factorize_by_rotation<double>(options, parts, [&](const Factors<double>& factors) {
          const std::lock_guard lock(mutex);
          std::copy_n(factors.w.values.begin(), factors.w.size(),
                      rotated.w.begin() + factors.w.range.begin * 4);
          std::copy_n(factors.h.values.begin(), factors.h.size(),
                      rotated.h.begin() + factors.h.range.begin * 4);
        });
    EXPECT_EQ(budget.held(), 0u);
    const std::lock_guard lock(mutex);
    if (self.rank == 0) rotated.result = result;
  });
  return rotated;
}

// The start values, by their formula.
Matrix start_of(int64_t count, uint64_t which, const FactorizeOptions& options) {
  Matrix rows;
  const double middle = std::sqrt(UnevenRatings().mean() / 4);
  for (int64_t i = 0; i < count; ++i) {
    rows.emplace_back();
    for (int64_t f = 0; f < 4; ++f)
      rows.back().push_back(middle * (0.9 + 0.2 * uniform_of(key_of(options.seed + 0x5eed + which, i, f))));
  }
  return rows;
}

// One rank's rows of an epoch: those with the least −log(u) / c, found by sorting.
std::vector<bool> drawn_by_sorting(const std::vector<double>& progress, Span rows, size_t count,
                                   const FactorizeOptions& options, int64_t epoch) {
  double sum = 0;
  for (int64_t i = rows.begin; i < rows.end; ++i) sum += progress[i];
  std::vector<std::pair<double, int64_t>> keys;
  for (int64_t i = rows.begin; i < rows.end; ++i) {
    const double u = 1 - uniform_of(key_of(options.seed ^ 0x0405, epoch, i));
    const double c = progress[i] + 0.1 / 0.9 * sum / static_cast<double>(rows.count());
    keys.emplace_back(-std::log(u) / c, i);
  }
  std::sort(keys.begin(), keys.end());
  std::vector<bool> drawn(kRows, false);
  for (size_t k = 0; k < count; ++k) drawn[keys[k].second] = true;
  return drawn;
}

TEST(RowPriority, TheRotationOfChosenRowsIsThatOfPlainLoops) {
  const FactorizeOptions options = options_of(0.25, 6);
  const UnevenRatings source;
  for (const int ranks : {1, 3}) {
    Matrix w = start_of(kRows, 0, options), h = start_of(kColumns, 1, options);
    std::vector<double> progress(kRows, 0);
    int64_t updates = 0, steps = 0;
    for (int64_t epoch = 0; epoch < options.epochs; ++epoch) {
      std::vector<bool> chosen(kRows, epoch == 0);
      for (int r = 0; epoch > 0 && r < ranks; ++r) {
        const Span rows = part_of(kRows, ranks, r);
        const auto drawn = drawn_by_sorting(progress, rows, rows.count() / 4, options, epoch);
        for (int64_t i = 0; i < kRows; ++i) chosen[i] = chosen[i] || drawn[i];
      }
      updates += std::count(chosen.begin(), chosen.end(), true);
      const Matrix before = w;
      for (int s = 0; s < ranks; ++s) {
        for (int r = 0; r < ranks; ++r) {
          const Span rows = part_of(kRows, ranks, r), columns = part_of(kColumns, ranks, (r + s) % ranks);
          std::vector<Rating> block;
          for (const Rating& entry : source.entries())
            if (entry.row >= rows.begin && entry.row < rows.end && entry.column >= columns.begin &&
                entry.column < columns.end)
              block.push_back(entry);
          const VisitOrder order(block.size(), visit_key(options.seed, epoch, r, (r + s) % ranks));
          for (size_t t = 0; t < block.size(); ++t) {
            const Rating& entry = block[order[t]];
            if (!chosen[entry.row]) continue;
            ++steps;
            const std::vector<double> a = w[entry.row], b = h[entry.column];
            const double e = entry.value - std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
            for (size_t f = 0; f < 4; ++f) {
              w[entry.row][f] += options.lr * (e * b[f] - options.l2 * a[f]);
              h[entry.column][f] += options.lr * (e * a[f] - options.l2 * b[f]);
            }
          }
        }
      }
      for (int64_t i = 0; i < kRows; ++i) {
        double square = 0;
        for (size_t f = 0; f < 4; ++f) square += (w[i][f] - before[i][f]) * (w[i][f] - before[i][f]);
        if (chosen[i]) progress[i] = std::sqrt(square);
      }
    }
    const Rotated rotated = rotate(ranks, options);
    for (int64_t i = 0; i < kRows * 4; ++i) EXPECT_NEAR(rotated.w[i], w[i / 4][i % 4], 1e-10) << i;
    for (int64_t i = 0; i < kColumns * 4; ++i) EXPECT_NEAR(rotated.h[i], h[i / 4][i % 4], 1e-10) << i;
    EXPECT_EQ(rotated.result.row_updates, updates) << ranks;
    EXPECT_EQ(rotated.result.row_updates, kRows + 5 * kRows / 4) << ranks;
    EXPECT_EQ(rotated.result.steps, steps) << ranks;
  }
}

// Returns the updates until the error of all entries is at most `rmse`.
FactorizeResult until(double rmse, double share) {
  for (int64_t epochs = 2; epochs < 400; epochs += 2) {
    const FactorizeResult result = rotate(1, options_of(share, epochs)).result;
    if (result.train_rmse <= rmse) return result;
  }
  ADD_FAILURE() << "no run reached an error of " << rmse;
  return {};
}

TEST(RowPriority, ReachesAnErrorWithFewerUpdatesOfRows) {
  const FactorizeResult all = until(0.1, 1), chosen = until(0.1, 0.25);
  RecordProperty("updates_all", std::to_string(all.row_updates));
  RecordProperty("updates_chosen", std::to_string(chosen.row_updates));
  EXPECT_EQ(all.row_updates, all.epochs * kRows);
  EXPECT_EQ(all.steps, all.row_updates * kPerRow);
  EXPECT_EQ(chosen.steps, chosen.row_updates * kPerRow);
  EXPECT_LT(2 * chosen.row_updates, all.row_updates);
}

TEST(RowPriority, AResumedRunEndsWithEqualBits) {
  const Rotated whole = rotate(2, options_of(0.25, 8));
  for (const int ranks : {2, 3}) {
    const TempDir folder;
    rotate(2, options_of(0.25, 5), folder.file("ck"));
    const Rotated rest = rotate(ranks, options_of(0.25, 8), folder.file("ck"));
    EXPECT_EQ(rest.result.resumed_from, 5);
    EXPECT_EQ(rest.result.row_updates, 3 * kRows / 4);
    if (ranks == 2) {
      EXPECT_EQ(rest.w, whole.w);
      EXPECT_EQ(rest.h, whole.h);
    }
    try {
      rotate(1, options_of(0.5, 9), folder.file("ck"));
      ADD_FAILURE() << "the checkpoint is of another share";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("priority is 0.25"), std::string::npos) << error.what();
    }
  }
}

// With NaN, the order of the priorities would be none, and the choice could read behind them.
TEST(RowPriority, ProgressThatIsNoLengthIsRefused) {
  for (const double wrong : {std::nan(""), -1.0}) {
    const TempDir folder;
    rotate(1, options_of(0.25, 2), folder.file("ck"));
    const std::string path = folder.file("ck/part-2-0-of-1");
    CheckpointArrays part = CheckpointArrays::parse(path, read_bytes(path), 2, 0, 1);
    std::vector<double> progress = part.get<double>("progress");
    progress[1] = wrong;
    part.put<double>("progress", progress);
    write_bytes(path, part.write(2, 0, 1));
    EXPECT_THROW(rotate(1, options_of(0.25, 3), folder.file("ck")), Error) << wrong;
  }
}

TEST(RowPriority, AChangeThatIsNotANumberCountsAsInfinite) {
  MemoryBudget budget;
  FactorBlock<double> w({0, 2}, 2, 1, budget);
  w.values = {1, 1};
  RowPriority<double> priority(0.5, w, budget);
  priority.begin_epoch(0, 0, w);
  w.values[1] = std::nan("");
  priority.end_epoch(w);
  EXPECT_EQ(priority.progress()[0], 0);
  EXPECT_EQ(priority.progress()[1], std::numeric_limits<double>::infinity());
}

TEST(RowPriority, DrawsInProportionToTheProgress) {
  const std::vector<double> progress = {0, 4, 0, 1, 5};
  MemoryBudget budget;
  std::vector<uint8_t> chosen(5, 9);
  std::vector<int> seen(5, 0);
  constexpr int kDraws = 20'000;
  for (int64_t epoch = 0; epoch < kDraws; ++epoch) {
    draw_rows(1, 3, epoch, 10, progress, chosen, budget);
    ASSERT_EQ(std::accumulate(chosen.begin(), chosen.end(), 0), 1);
    for (size_t i = 0; i < 5; ++i) seen[i] += chosen[i];
  }
  const double least = kRowExploration / (1 - kRowExploration) * 10 / 5;
  for (size_t i = 0; i < 5; ++i) {
    const double expected = (progress[i] + least) / (10 + 5 * least);
    EXPECT_NEAR(seen[i] / double(kDraws), expected, 5 * std::sqrt(expected / kDraws)) << i;
  }
  const std::vector<double> none(5, 0);  // a uniform draw
  std::fill(seen.begin(), seen.end(), 0);
  for (int64_t epoch = 0; epoch < 1000; ++epoch) {
    draw_rows(2, 3, epoch, 10, none, chosen, budget);
    for (size_t i = 0; i < 5; ++i) seen[i] += chosen[i];
  }
  for (const int count : seen) EXPECT_NEAR(count, 400, 80);
  draw_rows(5, 3, 1, 0, progress, chosen, budget);
  EXPECT_EQ(chosen, std::vector<uint8_t>(5, 1));
  MemoryBudget little(79);  // a key has 16 bytes
  EXPECT_THROW(draw_rows(1, 3, 0, 10, progress, chosen, little), Error);
}

}  // namespace
}  // namespace starling
