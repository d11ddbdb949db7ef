// Compares both forms of matrix factorization with naive simulations of their equations, and what a rank
// holds with its limit.
#include "starling/factor/factorize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include "starling/base/error.h"
#include "starling/base/keyed_random.h"
#include "starling/comm/bootstrap.h"
#include "starling/factor/rating_stripe.h"
#include "starling/server/serve.h"
#include "starling/testing/forked_ranks.h"
#include "starling/testing/join_group.h"
#include "starling/testing/run_ranks.h"
#include "starling/testing/temp_dir.h"

namespace starling {
namespace {

using testing::HasSubstr;

GeneratedRatings small() {
  GeneratedRatings spec;
  spec.rows = 41, spec.columns = 23, spec.count = 900, spec.factors = 3, spec.seed = 7;
  return spec;
}
FactorizeOptions few_epochs() {
  FactorizeOptions options;
  options.factors = 5, options.epochs = 3, options.lr = 0.02, options.seed = 11;
  return options;
}

std::unique_ptr<Group> group_of(const ThreadRank& self, int size, const std::string& name = "world") {
  GroupSetup setup;
  setup.rank = self.rank, setup.size = size, setup.name = name;
  return size == 1 ? make_single_group() : make_group(*self.store, setup);
}

// Factorizes the whole matrix in one process, in plain loops. Factors are rows of numbers, and entries keep
// the order of the source.
struct Naive {
  std::vector<std::vector<double>> w, h;
  std::vector<Rating> entries;
  FactorizeOptions options;

  Naive(const RatingSource& source, const FactorizeOptions& o) : options(o) {
    source.visit([&](std::span<const Rating> piece) {
      for (const Rating& r : piece)
        if (!is_test_rating(r, o.test_share, o.seed)) entries.push_back(r);
    });
    const double middle = std::sqrt(source.mean() / static_cast<double>(o.factors));
    const auto fill = [&](auto& rows, int64_t count, uint64_t which) {
      for (int64_t i = 0; i < count; ++i) {
        rows.emplace_back();
        for (int64_t f = 0; f < o.factors; ++f)
          rows.back().push_back(middle * (0.9 + 0.2 * uniform_of(key_of(o.seed + 0x5eed + which, i, f))));
      }
    };
    fill(w, source.rows(), 0), fill(h, source.columns(), 1);
  }
  // Returns the entries of a block in the order of the source.
  std::vector<Rating> block(Span rows, Span columns) const {
    std::vector<Rating> in;
    for (const Rating& r : entries)
      if (r.row >= rows.begin && r.row < rows.end && r.column >= columns.begin && r.column < columns.end)
        in.push_back(r);
    return in;
  }
  void step(const Rating& r, double lr, std::vector<std::vector<double>>& table) {
    std::vector<double>&a = w[r.row], &b = table[r.column];
    double e = r.value;
    for (size_t f = 0; f < a.size(); ++f) e -= a[f] * b[f];
    const std::vector<double> a0 = a, b0 = b;
    for (size_t f = 0; f < a.size(); ++f) {
      a[f] = a0[f] + lr * (e * b0[f] - options.l2 * a0[f]);
      b[f] = b0[f] + lr * (e * a0[f] - options.l2 * b0[f]);
    }
  }
};

double distance(const std::vector<std::vector<double>>& expected, const std::vector<double>& actual) {
  double difference = 0, norm = 0;
  size_t i = 0;
  for (const auto& row : expected) {
    for (const double x : row) {
      difference += (x - actual.at(i)) * (x - actual.at(i));
      norm += x * x;
      ++i;
    }
  }
  return std::sqrt(difference / norm);
}

// Collects the blocks of the ranks in their places.
struct Whole {
  std::vector<double> w, h;
  std::mutex mutex;
  Whole(const RatingSource& source, const FactorizeOptions& o)
      : w(source.rows() * o.factors, NAN), h(source.columns() * o.factors, NAN) {}
  void put(const Factors<double>& factors) {
    const std::lock_guard lock(mutex);
    std::copy_n(factors.w.values.begin(), factors.w.size(),
                w.begin() + factors.w.range.begin * factors.w.factors);
    std::copy_n(factors.h.values.begin(), factors.h.size(),
                h.begin() + factors.h.range.begin * factors.h.factors);
  }
};

TEST(Factorize, PartsAndOrders) {
  for (const int64_t count : {1, 5, 23, 64}) {
    for (const int parts : {1, 2, 3, 7}) {
      for (int64_t i = 0; i < count; ++i) {
        const Span part = part_of(count, parts, part_holding(count, parts, i));
        EXPECT_TRUE(part.begin <= i && i < part.end) << count << " " << parts << " " << i;
      }
    }
  }
  for (const size_t count : {1, 2, 6, 100}) {
    std::vector<int> seen(count, 0);
    const VisitOrder order(count, 99);
    for (size_t t = 0; t < count; ++t) ++seen[order[t]];
    EXPECT_EQ(seen, std::vector<int>(count, 1));
  }
}

// The naive form visits the blocks of a sub-epoch in another order than the ranks. The blocks share no row
// and no column.
TEST(Factorize, RotationIsTheScheduleOfDsgd) {
  const auto source = make_ratings(small());
  const FactorizeOptions options = few_epochs();
  for (const int ranks : {1, 4}) {
    Whole whole(*source, options);
    std::vector<double> rmse(ranks);
    run_ranks(ranks, [&](const ThreadRank& self) {
      const auto group = group_of(self, ranks);
      MemoryBudget budget;
      const SystemClock clock;
      const FactorizeResult result = factorize_by_rotation<double>(
          options, {*group, *source, budget, clock, {}}, [&](const Factors<double>& f) { whole.put(f); });
      rmse[self.rank] = result.train_rmse;
      EXPECT_EQ(budget.held(), 0u);
      EXPECT_EQ(result.bytes_sent, ranks == 1 ? 0 : uint64_t(3 * 4 * 23 * 5 * 8));  // epochs · ranks · H
    });
    Naive naive(*source, options);
    double lr = options.lr;
    for (int64_t epoch = 0; epoch < options.epochs; ++epoch, lr *= options.lr_decay) {
      for (int s = 0; s < ranks; ++s) {
        for (int r = ranks - 1; r >= 0; --r) {
          const int c = (r + s) % ranks;
          const auto block = naive.block(part_of(41, ranks, r), part_of(23, ranks, c));
          const VisitOrder order(block.size(), visit_key(options.seed, epoch, r, c));
          for (size_t t = 0; t < block.size(); ++t) naive.step(block[order[t]], lr, naive.h);
        }
      }
    }
    EXPECT_LT(distance(naive.w, whole.w), 1e-10);
    EXPECT_LT(distance(naive.h, whole.h), 1e-10);
    double squared = 0;
    for (const Rating& r : naive.entries) {
      double e = r.value;
      for (int f = 0; f < options.factors; ++f) e -= naive.w[r.row][f] * naive.h[r.column][f];
      squared += e * e;
    }
    for (const double of_rank : rmse) EXPECT_NEAR(of_rank, std::sqrt(squared / naive.entries.size()), 1e-12);
  }
}

// Resumed on equal ranks, the rotation has the bits of a run that was not interrupted. On another number of
// ranks it goes on from equal factors.
TEST(Factorize, TheRotationResumes) {
  const auto source = make_ratings(small());
  const auto rotate = [&](int ranks, int64_t epochs, const std::string& folder) {
    FactorizeOptions options = few_epochs();
    options.epochs = epochs;
    auto whole = std::make_unique<Whole>(*source, options);
    run_ranks(ranks, [&](const ThreadRank& self) {
      const auto group = group_of(self, ranks);
      MemoryBudget budget;
      const SystemClock clock;
      FactorizeParts parts{*group, *source, budget, clock, {}};
      parts.checkpoint = folder;
      parts.checkpoint_every = 2;
      factorize_by_rotation<double>(options, parts, [&](const Factors<double>& f) { whole->put(f); });
    });
    return whole;
  };
  const TempDir folder;
  const auto straight = rotate(3, 6, "");
  const auto half = rotate(3, 3, folder.file("ck"));
  std::filesystem::copy(folder.file("ck"), folder.file("other"));
  const auto kept = rotate(2, 3, folder.file("other"));  // no epoch is left
  EXPECT_EQ(kept->w, half->w);
  EXPECT_EQ(kept->h, half->h);
  const auto rest = rotate(3, 6, folder.file("ck"));
  EXPECT_EQ(rest->w, straight->w);
  EXPECT_EQ(rest->h, straight->h);
  FactorizeOptions other = few_epochs();
  other.l2 = 0.5;
  const auto group = make_single_group();
  MemoryBudget budget;
  const SystemClock clock;
  FactorizeParts parts{*group, *source, budget, clock, {}};
  parts.checkpoint = folder.file("ck");
  try {
    factorize_by_rotation<double>(other, parts, {});
    FAIL() << "the checkpoint has another l2";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kConfig);
    EXPECT_THAT(error.what(), HasSubstr("l2"));
  }
}

TEST(Factorize, AStopOfOneRankEndsAllRanks) {
  const auto source = make_ratings(small());
  const std::atomic<bool> stop = true;
  run_ranks(3, [&](const ThreadRank& self) {
    const auto group = group_of(self, 3);
    MemoryBudget budget;
    const SystemClock clock;
    FactorizeParts parts{*group, *source, budget, clock, {}};
    if (self.rank == 1) parts.stop = &stop;
    const FactorizeResult result = factorize_by_rotation<float>(few_epochs(), parts, {});
    EXPECT_TRUE(result.interrupted);
    EXPECT_EQ(result.epochs, 1);
  });
}

TEST(Factorize, ItLearns) {
  GeneratedRatings spec;
  spec.rows = 300, spec.columns = 200, spec.count = 12'000, spec.factors = 2;
  const auto source = make_ratings(spec);
  FactorizeOptions options;
  options.factors = 4, options.epochs = 40, options.lr = 0.05, options.lr_decay = 0.97;
  std::vector<double> progress;
  run_ranks(3, [&](const ThreadRank& self) {
    const auto group = group_of(self, 3);
    MemoryBudget budget;
    const SystemClock clock;
    FactorizeParts parts{*group, *source, budget, clock, {}};
    if (self.rank == 0) parts.on_epoch = [&](const FactorizeEpoch& e) { progress.push_back(e.train_rmse); };
    const FactorizeResult result = factorize_by_rotation<float>(options, parts, {});
    EXPECT_LT(result.train_rmse, 0.25);
    // The standard deviation of the entries is about 1.3, of which 0.1 is noise.
    EXPECT_LT(result.test_rmse, 0.45);
  });
  ASSERT_EQ(progress.size(), 40u);
  EXPECT_LT(progress.back(), progress.front() / 3);
}

constexpr int kWorkers = 3;

// Factorizes with H on a server. Returns the events in the order in which the server recorded them.
std::vector<ServerTableEvent> run_tables(const RatingSource& source, const FactorizeOptions& options,
                                         std::optional<int64_t> staleness, Whole& whole,
                                         const std::string& checkpoint = "") {
  std::vector<ServerTableEvent> events;
  run_ranks(kWorkers + 1, [&](const ThreadRank& self) {
    ServerRendezvous rendezvous;
    rendezvous.workers = kWorkers;
    rendezvous.name = "factors";
    rendezvous.server_timeout = std::chrono::milliseconds(30'000);
    if (self.rank == kWorkers) {
      ServerOptions server = factor_table_options(kWorkers, staleness);
      server.record_events = true;
      serve_shard(*self.store, rendezvous, 0, server, DataType::kFp64);
      return;
    }
    const auto group = group_of(self, kWorkers);
    MemoryBudget budget;
    const SystemClock clock;
    FactorizeParts parts{*group, source, budget, clock, {}};
    parts.checkpoint = checkpoint;
    factorize_by_tables<double>(options, parts, *self.store, rendezvous,
                                [&](const Factors<double>& f, ServerClient<double>& client) {
                                  whole.put(f);
                                  if (self.rank == 0) events = client.events(0);
                                });
  });
  return events;
}

// Returns what a worker changes between a read at `clock` and its push, by steps on a copy of H.
std::vector<std::vector<double>> work_of(Naive& naive, int worker, int64_t clock) {
  std::vector<std::vector<double>> copy = naive.h;
  const auto mine = naive.block(part_of(41, kWorkers, worker), {0, 23});
  const int64_t epoch = clock / kWorkers;
  const VisitOrder order(mine.size(), visit_key(naive.options.seed, epoch, worker, 0));
  const Span part = part_of(mine.size(), kWorkers, static_cast<int>(clock % kWorkers));
  const double lr = naive.options.lr * std::pow(naive.options.lr_decay, epoch);
  for (int64_t t = part.begin; t < part.end; ++t) naive.step(mine[order[t]], lr, copy);
  for (size_t j = 0; j < copy.size(); ++j)
    for (size_t f = 0; f < copy[j].size(); ++f) copy[j][f] -= naive.h[j][f];
  return copy;
}

void replay(Naive& naive, const std::vector<ServerTableEvent>& events) {
  std::vector<std::vector<std::vector<double>>> change(kWorkers);
  const auto add = [&](int worker) {
    for (size_t j = 0; j < naive.h.size(); ++j)
      for (size_t f = 0; f < naive.h[j].size(); ++f) naive.h[j][f] += change[worker][j][f];
  };
  std::vector<int> held;
  for (const ServerTableEvent& event : events) {
    const int worker = static_cast<int>(event.worker);
    const bool works =
        event.action == ServerTableAction::kRead && event.clock < naive.options.epochs * kWorkers;
    if (works) change[worker] = work_of(naive, worker, event.clock);
    if (event.action == ServerTableAction::kPush) add(worker);
    if (event.action == ServerTableAction::kHold) held.push_back(worker);
    if (event.action != ServerTableAction::kUpdate) continue;
    for (const int one : held) add(one);
    held.clear();
  }
}

// Replays stale reads in the recorded order, in plain loops.
TEST(Factorize, TablesReplayed) {
  const auto source = make_ratings(small());
  const FactorizeOptions options = few_epochs();
  for (const std::optional<int64_t> staleness :
       {std::optional<int64_t>(0), std::optional<int64_t>(1), std::optional<int64_t>()}) {
    Whole whole(*source, options);
    const std::vector<ServerTableEvent> events = run_tables(*source, options, staleness, whole);
    ASSERT_FALSE(events.empty());
    Naive naive(*source, options);
    replay(naive, events);
    EXPECT_LT(distance(naive.w, whole.w), 1e-10);
    EXPECT_LT(distance(naive.h, whole.h), 1e-10);
  }
}

double largest_difference_of(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b.at(i)));
  return largest;
}

// Returns the code of the Error that a call throws, or kInternal if there is none.
ErrorCode refusal_code(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.code();
  }
  return ErrorCode::kInternal;
}

// With staleness 0 all reads see all pushes, whose order changes the rounding only.
TEST(Factorize, TablesResume) {
  const auto source = make_ratings(small());
  const TempDir folder;
  FactorizeOptions options = few_epochs();
  Whole half(*source, options), rest(*source, options), straight(*source, options);
  run_tables(*source, options, 0, half, folder.file("ck"));
  options.epochs = 6;
  run_tables(*source, options, 0, straight);
  const std::vector<ServerTableEvent> events = run_tables(*source, options, 0, rest, folder.file("ck"));
  EXPECT_EQ(std::count_if(events.begin(), events.end(),
                          [](const ServerTableEvent& e) {
                            return e.worker == 0 && (e.action == ServerTableAction::kPush ||
                                                     e.action == ServerTableAction::kHold);
                          }),
            3 * kWorkers);  // a clock of each part in each epoch that was left
  EXPECT_LT(largest_difference_of(rest.w, straight.w), 1e-12);
  EXPECT_LT(largest_difference_of(rest.h, straight.h), 1e-12);
  EXPECT_GT(largest_difference_of(half.h, straight.h), 1e-6);
  // The other form is refused.
  const auto group = make_single_group();
  MemoryBudget budget;
  const SystemClock clock;
  FactorizeParts parts{*group, *source, budget, clock, {}};
  parts.checkpoint = folder.file("ck");
  EXPECT_EQ(refusal_code([&] { factorize_by_rotation<double>(options, parts, {}); }), ErrorCode::kConfig);
}

// Swaps the values of two entries, so that the number and the mean of the entries stay.
class Swapped final : public RatingSource {
 public:
  explicit Swapped(const RatingSource& source) : source_(source) {}
  int64_t rows() const override { return source_.rows(); }
  int64_t columns() const override { return source_.columns(); }
  int64_t count() const override { return source_.count(); }
  double mean() const override { return source_.mean(); }
  void visit(const Take& take) const override {
    source_.visit([&](std::span<const Rating> piece) {
      std::vector<Rating> ratings(piece.begin(), piece.end());
      std::swap(ratings[0].value, ratings[1].value);
      take(ratings);
    });
  }

 private:
  const RatingSource& source_;
};

TEST(Factorize, ACheckpointOfOtherEntriesIsRefused) {
  const auto source = make_ratings(small());
  const Swapped swapped(*source);
  const TempDir folder;
  const auto group = make_single_group();
  MemoryBudget budget;
  const SystemClock clock;
  const auto rotate = [&](const RatingSource& entries) {
    FactorizeParts parts{*group, entries, budget, clock, {}};
    parts.checkpoint = folder.file("ck");
    return factorize_by_rotation<double>(few_epochs(), parts, {}).resumed_from;
  };
  EXPECT_EQ(rotate(*source), 0);
  EXPECT_EQ(rotate(*source), 3);
  EXPECT_EQ(refusal_code([&] { rotate(swapped); }), ErrorCode::kConfig);
}

// Returns the private writable memory of this process, as RLIMIT_DATA counts it.
size_t private_memory() {
  std::ifstream statm("/proc/self/statm");
  size_t pages[6] = {};
  for (size_t& p : pages) statm >> p;
  return pages[5] * static_cast<size_t>(::sysconf(_SC_PAGESIZE));
}

// Sanitizers allocate private memory of their own, so the kernel's limit is not tested with them. The counted
// limit is.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kKernelLimit = false;
#else
constexpr bool kKernelLimit = true;
#endif

// Entries and factors are four times what a rank may hold. The test checks the counted bytes and sets the
// kernel's limit of private memory, under which a rank cannot hold half of them.
TEST(Factorize, AMatrixFourTimesARanksLimit) {
  constexpr int kRanks = 6;
  GeneratedRatings spec;
  spec.rows = 72'000, spec.columns = 36'000, spec.count = 900'000, spec.factors = 1;
  FactorizeOptions options;
  options.factors = 16, options.epochs = 1;
  const size_t matrix = 900'000 * sizeof(Rating) + 108'000 * 16 * sizeof(float);  // 17.7 MB
  const size_t limit = matrix / 4;
  ForkedRanks ranks(kRanks, [&](int rank, Store& store) {
    const auto source = make_ratings(spec);
    const auto group = join_group(store, rank, kRanks);
    barrier(*group);
    const size_t room = private_memory() + limit + (3u << 20);  // malloc's own memory, and pieces in transit
    const rlimit bound{room, room};
    if (kKernelLimit && setrlimit(RLIMIT_DATA, &bound) != 0) throw Error(ErrorCode::kInternal, "setrlimit");
    bool refused = !kKernelLimit;
    try {
      std::vector<std::byte> half(matrix / 2);
      asm volatile("" : : "r"(half.data()) : "memory");  // keeps the compiler from removing the vector
    } catch (const std::bad_alloc&) {
      refused = true;
    }
    MemoryBudget budget(limit);
    const SystemClock clock;
    const FactorizeResult result =
        factorize_by_rotation<float>(options, {*group, *source, budget, clock, {}}, {});
    const double numbers[] = {result.matrix_bytes,
                              *std::max_element(result.peak_bytes.begin(), result.peak_bytes.end()),
                              result.test_rmse, refused ? 1.0 : 0.0};
    store.put("result/" + std::to_string(rank),
              std::string(reinterpret_cast<const char*>(numbers), sizeof(numbers)));
  });
  for (int rank = 0; rank < kRanks; ++rank) {
    const int status = ranks.wait(rank);
    ASSERT_EQ(status, 0) << ranks.store().try_get("error/" + std::to_string(rank)).value_or("no word");
    double numbers[4];
    const std::string text =
        ranks.store().get("result/" + std::to_string(rank), std::chrono::milliseconds(1000));
    std::memcpy(numbers, text.data(), sizeof(numbers));
    EXPECT_EQ(numbers[0], static_cast<double>(matrix));
    EXPECT_LE(4 * numbers[1], numbers[0]);
    EXPECT_LT(numbers[2], 2.0);  // 2.6 before the epoch
    EXPECT_EQ(numbers[3], 1.0) << "the limit must bite";
  }
}

TEST(Factorize, WhatDoesNotFitIsRefused) {
  const auto source = make_ratings(small());
  const auto group = make_single_group();
  MemoryBudget budget(4096);
  const SystemClock clock;
  try {
    factorize_by_rotation<float>(few_epochs(), {*group, *source, budget, clock, {}}, {});
    FAIL() << "900 entries are more than 4096 bytes";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kMemory);
    EXPECT_THAT(error.what(), HasSubstr("4096"));
  }
  FactorizeOptions wild = few_epochs();
  wild.lr = 1e6;
  MemoryBudget enough;
  EXPECT_THROW(factorize_by_rotation<float>(wild, {*group, *source, enough, clock, {}}, {}), Error);
}

TEST(Ratings, FilesOfTheUsualForms) {
  const TempDir folder;
  const std::string path = folder.file("ratings");
  for (const char* text : {"userId,movieId,rating,timestamp\n1,2,3.5,99\n4,0,1,98\n",
                           "1::2::3.5::99\n4::0::1::98\n", "1\t2\t3.5\r\n\n4 0 1\n"}) {
    write_bytes(path, text);
    const auto source = open_ratings(path);
    EXPECT_EQ(source->rows(), 5);
    EXPECT_EQ(source->columns(), 3);
    EXPECT_EQ(source->count(), 2);
    EXPECT_DOUBLE_EQ(source->mean(), 2.25);
  }
  write_bytes(path, "1 2 3\n1 2 5\n");  // two entries of one cell
  EXPECT_EQ(open_ratings(path)->count(), 2);
  EXPECT_DOUBLE_EQ(open_ratings(path)->mean(), 4);
  for (const char* text : {"1,2,3\n1,2\n", "1,2,3\n-1,2,3\n", "1,2,3\n1,2,nan\n", "1,2,3\n1,2,3x\n",
                           "1,2,3\n1,4294967295,3\n"}) {
    write_bytes(path, text);
    try {
      open_ratings(path);
      FAIL() << text;
    } catch (const DataError& error) {
      EXPECT_THAT(error.what(), HasSubstr("line 2"));
    }
  }
  for (const char* text : {"", "1 1 nan\n2 2 3\n"}) {  // a first line that begins with a number is no heading
    write_bytes(path, text);
    EXPECT_THROW(open_ratings(path), DataError) << text;
  }
  try {
    open_ratings(folder.file("absent"));
    FAIL() << "the file does not exist";
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), HasSubstr("cannot be opened: No such file or directory; check the path"));
  }
}

}  // namespace
}  // namespace starling
