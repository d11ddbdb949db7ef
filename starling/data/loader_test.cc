#include "starling/data/loader.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <set>
#include <string>

#include "starling/base/error.h"
#include "starling/data/formats/image_source.h"
#include "starling/data/generated/digits.h"

namespace starling {
namespace {

using ::testing::HasSubstr;

std::vector<int64_t> order_of(uint64_t seed, int64_t epoch, int64_t size) {
  std::vector<int64_t> order;
  for (int64_t i = 0; i < size; ++i) order.push_back(sample_at(seed, epoch, i, size, Order::kShuffled));
  return order;
}

TEST(SampleOrder, IsAPermutation) {
  for (const int64_t size : {1, 2, 3, 7, 255, 256, 257, 1000, 4096, 60000}) {
    std::vector<int64_t> order = order_of(7, 3, size);
    std::sort(order.begin(), order.end());
    std::vector<int64_t> all(static_cast<size_t>(size));
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(order, all) << size;
  }
}

TEST(SampleOrder, DependsOnSeedAndEpoch) {
  EXPECT_EQ(order_of(1, 0, 500), order_of(1, 0, 500));
  EXPECT_NE(order_of(1, 0, 500), order_of(2, 0, 500));
  EXPECT_NE(order_of(1, 0, 500), order_of(1, 1, 500));
}

TEST(SampleOrder, SequentialIsTheIdentity) {
  for (int64_t i = 0; i < 10; ++i) EXPECT_EQ(sample_at(9, 4, i, 10, Order::kSequential), i);
}

// The chi-square test over 4,000 keys: which of 20 samples comes at a position. With 19 degrees of freedom,
// 99.99 % of the values are below 51.
TEST(SampleOrder, PlacesEverySampleEverywhereEquallyOften) {
  for (const int64_t position : {0, 9, 19}) {
    std::vector<double> count(20);
    for (int64_t epoch = 0; epoch < 4000; ++epoch)
      count[sample_at(5, epoch, position, 20, Order::kShuffled)] += 1;
    double chi2 = 0;
    for (const double c : count) chi2 += (c - 200) * (c - 200) / 200;
    EXPECT_LT(chi2, 51) << position;
  }
}

TEST(SampleOrder, NeighborsAreNotCorrelated) {
  const std::vector<int64_t> order = order_of(11, 0, 10000);
  double sum = 0;
  for (size_t i = 0; i + 1 < order.size(); ++i) sum += (order[i] - 4999.5) * (order[i + 1] - 4999.5);
  EXPECT_LT(std::abs(sum / 9999 / (10000.0 * 10000.0 / 12)), 0.05);
}

// A source whose samples are their index and epoch. It throws at the index `bad`.
class CountingSource final : public Source {
 public:
  explicit CountingSource(int64_t size, int64_t bad = -1) : size_(size), bad_(bad) {
    info_.name = "counting";
    info_.input_shape = {1};
  }
  const SourceInfo& info() const override { return info_; }
  int64_t size() const override { return size_; }
  Batch read(const std::vector<int64_t>& indices, int64_t epoch) const override {
    ++reads;
    for (const int64_t index : indices) {
      if (index == bad_) throw DataError("sample 37: offset 4: broken");
    }
    return {at::tensor(indices), at::full({static_cast<int64_t>(indices.size())}, epoch)};
  }
  mutable std::atomic<int> reads{0};

 private:
  int64_t size_, bad_;
  SourceInfo info_;
};

std::vector<int64_t> values(const at::Tensor& tensor) {
  return {tensor.const_data_ptr<int64_t>(), tensor.const_data_ptr<int64_t>() + tensor.numel()};
}

TEST(Loader, RanksTogetherReadWhatOneRankReads) {
  const auto source = std::make_shared<CountingSource>(100);
  for (const int ranks : {1, 2, 3, 4}) {
    LoaderOptions alone{.seed = 3, .global_batch = 24};
    const auto one = make_loader(source, alone);
    std::vector<std::unique_ptr<Loader>> loaders;
    for (int rank = 0; rank < ranks; ++rank) {
      LoaderOptions options = alone;
      options.rank = rank, options.ranks = ranks, options.workers = 1 + rank % 3;
      loaders.push_back(make_loader(source, options));
    }
    for (int step = 0; step < 10; ++step) {
      std::vector<at::Tensor> parts;
      for (const auto& loader : loaders) parts.push_back(loader->next().input);
      EXPECT_EQ(values(at::cat(parts)), values(one->next().input)) << ranks << " ranks, step " << step;
    }
  }
}

TEST(Loader, RanksWithUnequalPartsReadWhatOneRankReads) {
  const auto source = std::make_shared<CountingSource>(100);
  const auto one = make_loader(source, {.seed = 3, .global_batch = 25});
  std::vector<std::unique_ptr<Loader>> loaders;
  for (int rank = 0; rank < 3; ++rank) {
    LoaderOptions options{.seed = 3, .global_batch = 25, .rank = rank, .ranks = 3};
    options.parts = {3, 1, 1};
    options.workers = rank;
    loaders.push_back(make_loader(source, options));
  }
  for (int step = 0; step < 10; ++step) {
    std::vector<at::Tensor> parts;
    std::vector<int64_t> sizes;
    for (const auto& loader : loaders) {
      parts.push_back(loader->next().input);
      sizes.push_back(parts.back().size(0));
    }
    EXPECT_EQ(values(at::cat(parts)), values(one->next().input)) << "step " << step;
    EXPECT_EQ(sizes, (std::vector<int64_t>{15, 5, 5}));
  }
}

TEST(Loader, NeedsAPartForEachRank) {
  const auto source = std::make_shared<CountingSource>(100);
  LoaderOptions options{.global_batch = 24, .ranks = 3};
  options.parts = {2, 1};
  try {
    make_loader(source, options);
    FAIL() << "the parts were taken";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("data.share: 2 parts for 3 ranks"));
  }
}

TEST(Loader, AnEpochHasEverySampleOnceAndLeavesTheRemainderOut) {
  const auto source = std::make_shared<CountingSource>(100);
  const auto loader = make_loader(source, {.seed = 1, .global_batch = 24, .workers = 3});
  EXPECT_EQ(loader->steps_per_epoch(), 4);
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    std::set<int64_t> seen;
    for (int step = 0; step < 4; ++step) {
      const Batch batch = loader->next();
      EXPECT_EQ(batch.size(), 24);
      EXPECT_EQ(values(batch.target)[0], epoch);
      for (const int64_t index : values(batch.input)) seen.insert(index);
    }
    EXPECT_EQ(seen.size(), 96u);
  }
}

TEST(Loader, ResumesAtAStep) {
  const auto source = std::make_shared<CountingSource>(50);
  for (const int64_t workers : {0, 1, 4}) {
    const auto whole = make_loader(source, {.seed = 8, .global_batch = 16, .workers = workers});
    const auto resumed =
        make_loader(source, {.seed = 8, .global_batch = 16, .workers = workers, .first_step = 7});
    for (int step = 0; step < 7; ++step) whole->next();
    for (int step = 0; step < 7; ++step) {
      const Batch a = whole->next(), b = resumed->next();
      EXPECT_EQ(values(a.input), values(b.input));
      EXPECT_EQ(values(a.target), values(b.target));
    }
  }
}

TEST(Loader, CarriesAWorkersErrorAtItsStepAndAgainAfterwards) {
  const auto source = std::make_shared<CountingSource>(64, 37);
  for (const int64_t workers : {0, 1, 4}) {
    const auto loader = make_loader(
        source, {.order = Order::kSequential, .global_batch = 8, .workers = workers, .prefetch = 6});
    for (int step = 0; step < 4; ++step) EXPECT_EQ(values(loader->next().input)[0], 8 * step);
    for (int again = 0; again < 2; ++again) {
      try {
        loader->next();
        FAIL() << "step 4 holds the broken sample";
      } catch (const DataError& error) {
        EXPECT_THAT(error.what(), HasSubstr("offset 4"));
      }
    }
  }
}

TEST(Loader, ReadsNoFurtherAheadThanItsQueue) {
  const auto source = std::make_shared<CountingSource>(1000);
  {
    const auto loader = make_loader(source, {.global_batch = 10, .workers = 2, .prefetch = 3});
    loader->next();
  }  // the destructor joins the workers; they claimed at most 1 delivered + 3 further steps
  EXPECT_LE(source->reads, 4);
  EXPECT_GE(source->reads, 1);
}

TEST(Loader, EndsWhileWorkersAreBusyAndUnused) {
  const auto source = std::make_shared<CountingSource>(1000);
  for (int i = 0; i < 50; ++i) make_loader(source, {.global_batch = 100, .workers = 4, .prefetch = 2});
  EXPECT_LE(source->reads, 50 * 4);
}

TEST(Loader, RefusesWhatCannotBeDivided) {
  const auto source = std::make_shared<CountingSource>(100);
  const auto message = [&](const LoaderOptions& options) -> std::string {
    try {
      make_loader(source, options);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(message({.global_batch = 10, .ranks = 3}), HasSubstr("multiple of 3, such as 9"));
  EXPECT_THAT(message({.global_batch = 128}),
              HasSubstr("holds 100 samples, fewer than one global batch of 128"));
  EXPECT_THAT(message({.global_batch = 0}), HasSubstr("train.global_batch"));
  EXPECT_THAT(message({.global_batch = 8, .rank = 2, .ranks = 2}), HasSubstr("rank 2 of 2"));
  EXPECT_THAT(message({.global_batch = 8, .workers = -1}), HasSubstr("data.workers"));
  EXPECT_THAT(message({.global_batch = 8, .prefetch = 0}), HasSubstr("data.prefetch"));
}

TEST(Loader, AugmentationDoesNotDependOnWorkersOrRanks) {
  const auto source = make_image_source("digits", make_digits(1, 60), no_normalization(1), {true, 4, 5});
  const auto one = make_loader(source, {.seed = 2, .global_batch = 12, .workers = 1});
  const auto many = make_loader(source, {.seed = 2, .global_batch = 12, .workers = 4});
  const auto second =
      make_loader(source, {.seed = 2, .global_batch = 12, .rank = 1, .ranks = 2, .workers = 2});
  for (int step = 0; step < 12; ++step) {
    const Batch a = one->next(), b = many->next(), c = second->next();
    EXPECT_TRUE(at::equal(a.input, b.input));
    EXPECT_TRUE(at::equal(a.target, b.target));
    EXPECT_TRUE(at::equal(a.input.slice(0, 6, 12), c.input));
  }
}

TEST(Loader, CountsWaiting) {
  const auto source = std::make_shared<CountingSource>(100);
  const auto loader = make_loader(source, {.global_batch = 10, .workers = 0});
  EXPECT_EQ(loader->waited_s(), 0);
  loader->next();
  EXPECT_GT(loader->waited_s(), 0);
}

std::vector<int64_t> keys_of(Loader& loader) {
  const at::Tensor keys = loader.next().keys;
  return {keys.const_data_ptr<int64_t>(), keys.const_data_ptr<int64_t>() + keys.numel()};
}

TEST(Loader, KeysBelongToSamplesNotToRanksOrSteps) {
  const auto source = std::make_shared<CountingSource>(16);
  LoaderOptions options;
  options.seed = 3;
  options.global_batch = 8;
  const auto alone = make_loader(source, options);
  const std::vector<int64_t> first = keys_of(*alone), second = keys_of(*alone), next_epoch = keys_of(*alone);
  EXPECT_EQ(std::set<int64_t>(first.begin(), first.end()).size(), 8u);

  options.ranks = 2;
  options.rank = 1;
  EXPECT_EQ(keys_of(*make_loader(source, options)), std::vector<int64_t>(first.begin() + 4, first.end()));
  options.ranks = 1;
  options.rank = 0;
  options.first_step = 1;
  EXPECT_EQ(keys_of(*make_loader(source, options)), second);

  std::vector<int64_t> both = first;
  both.insert(both.end(), second.begin(), second.end());
  for (const int64_t key : next_epoch) EXPECT_THAT(both, ::testing::Not(::testing::Contains(key)));
}

}  // namespace
}  // namespace starling
