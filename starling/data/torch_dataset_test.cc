#include "starling/data/torch_dataset.h"

#include <gtest/gtest.h>
#include <torch/data/datasets/base.h>
#include <torch/data/datasets/map.h>
#include <torch/data/datasets/tensor.h>
#include <torch/data/transforms/stack.h>
#include <torch/data/transforms/tensor.h>
#include <torch/types.h>

#include "starling/base/error.h"

namespace starling {
namespace {

// Sample i is ([i, i + 1], i).
class Counting : public torch::data::datasets::Dataset<Counting> {
 public:
  explicit Counting(size_t n) : n_(n) {}
  torch::data::Example<> get(size_t i) override {
    const auto x = static_cast<double>(i);
    return {torch::tensor({x, x + 1}), torch::tensor(static_cast<int64_t>(i))};
  }
  std::optional<size_t> size() const override { return n_; }

 private:
  size_t n_;
};

void expect_samples(const Source& source) {
  EXPECT_EQ(source.size(), 5);
  EXPECT_EQ(source.info().input_shape, (std::vector<int64_t>{2}));
  const Batch batch = source.read({4, 0, 4}, 3);
  EXPECT_TRUE(at::equal(batch.target, torch::tensor({int64_t{4}, int64_t{0}, int64_t{4}})));
  EXPECT_TRUE(at::equal(batch.input.to(torch::kDouble),
                        torch::tensor({4.0, 5.0, 0.0, 1.0, 4.0, 5.0}, torch::kDouble).view({3, 2})));
}

TEST(TorchDataset, ReadsExamplesAndStackedBatches) {
  expect_samples(*dataset(Counting(5)));
  expect_samples(*dataset(Counting(5).map(torch::data::transforms::Stack<>())));
}

TEST(TorchDataset, AppliesTransforms) {
  const auto doubled = dataset(
      Counting(3).map(torch::data::transforms::TensorLambda<>([](const at::Tensor& x) { return x * 2; })),
      "doubled");
  EXPECT_EQ(doubled->info().name, "doubled");
  const Batch batch = doubled->read({2}, 0);
  EXPECT_TRUE(at::equal(batch.input, torch::tensor({4.0, 6.0}, batch.input.options()).view({1, 2})));
}

TEST(TorchDataset, RefusesAnEmptyDataSet) {
  EXPECT_THROW(dataset(Counting(0)), DataError);
}

}  // namespace
}  // namespace starling
