#include "starling/data/nest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/data/datasets/base.h>
#include <torch/data/datasets/map.h>
#include <torch/data/transforms/stack.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include "starling/base/error.h"
#include "starling/data/collate.h"
#include "starling/data/loader.h"
#include "starling/data/sample_partition.h"
#include "starling/data/tensor_source.h"
#include "starling/data/torch_dataset.h"

namespace starling {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Words {
  at::Tensor ids, lengths;
};
struct Pair {
  Words first;
  std::array<at::Tensor, 2> rest;
};
struct NoNest {
  at::Tensor ids;
  int length;
};

at::Tensor number(double value) {
  return torch::scalar_tensor(value, torch::kDouble);
}

std::vector<double> values(const Tensors& tensors) {
  std::vector<double> all;
  for (const at::Tensor& t : tensors) all.push_back(t.item<double>());
  return all;
}

template <typename F>
std::string fault(const F& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Nest, IsATensorOrAStructOfNests) {
  static_assert(TensorNest<at::Tensor> && TensorNest<Tensors> && TensorNest<Words> && TensorNest<Pair>);
  static_assert(TensorNest<std::tuple<at::Tensor, std::tuple<at::Tensor, at::Tensor>>>);
  static_assert(!TensorNest<NoNest> && !TensorNest<int> && !TensorNest<std::string>);
  static_assert(nest::Shape<Pair>::tensors() == 4);
  static_assert(nest::Shape<std::pair<Words, Tensors>>::tensors() == -1);
}

TEST(Nest, HasItsTensorsInTheOrderOfTheMembers) {
  const Pair pair{{number(1), number(2)}, {number(3), number(4)}};
  EXPECT_THAT(values(tensors_of(pair)), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(values(tensors_of(std::tuple(number(1), std::tuple(number(2), number(3))))),
              ElementsAre(1, 2, 3));
  size_t next = 0;
  const Pair back = nest::take<Pair>(tensors_of(pair), next);
  EXPECT_EQ(next, 4u);
  EXPECT_EQ(back.first.lengths.item<double>(), 2);
  EXPECT_EQ(back.rest[1].item<double>(), 4);
}

template <typename F>
double on_batch(F f, const Tensors& outputs, const Tensors& targets) {
  return call_on_batch(f, outputs, targets, "the loss").template item<double>();
}

at::Tensor plain_function(const at::Tensor& output, const at::Tensor& target) {
  return output * target;
}

TEST(Nest, ALossTakesOutputsAndTargets) {
  const Tensors one = {number(2)}, two = {number(3), number(5)};
  EXPECT_EQ(on_batch(plain_function, one, {number(7)}), 14);
  EXPECT_EQ(on_batch([](const auto& a, const auto& b) { return a + b; }, one, one), 4);
  const auto three = [](const at::Tensor& a, const at::Tensor& b, const at::Tensor& c) {
    return 100 * a + 10 * b + c;
  };
  EXPECT_EQ(on_batch(three, one, two), 235);
  EXPECT_EQ(on_batch(three, two, one), 352);
  EXPECT_EQ(on_batch([](const Tensors& a, const Tensors& b) { return a.at(1) - b.at(0); }, two, one), 3);
  EXPECT_EQ(
      on_batch([](const Words& a, const at::Tensor& b) { return 10 * a.ids + a.lengths + b; }, two, one), 37);
  EXPECT_EQ(on_batch([](at::Tensor a, const Words& b) { return a + b.lengths; }, one, two), 7);
  EXPECT_EQ(on_batch([](const Words& a) { return a.ids - a.lengths; }, two, {}), -2);
}

TEST(Nest, ALossOfOtherNumbersIsRefused) {
  const Tensors one = {number(2)}, two = {number(3), number(5)};
  const char* const message = "the loss: its parameters do not fit 2 output(s) of the model and 1 target(s)";
  EXPECT_THAT(fault([&] { on_batch(plain_function, two, one); }), HasSubstr(message));
  EXPECT_THAT(fault([&] { on_batch([](const auto& a, const auto& b) { return a + b; }, two, one); }),
              HasSubstr(message));
  EXPECT_THAT(
      fault([&] { on_batch([](const Words& a, const Words& b) { return a.ids + b.ids; }, two, one); }),
      HasSubstr(message));
}

struct OfOne {
  at::Tensor forward(const at::Tensor& x) { return x + 1; }
};
struct OfOneOrTwo {
  at::Tensor forward(const at::Tensor& x, const at::Tensor& y = {}) { return y.defined() ? x + y : x; }
};
struct OfMaybe {
  at::Tensor forward(const at::Tensor& x, std::optional<at::Tensor> y) { return x * *y; }
};
struct OfList {
  Tensors forward(const Tensors& all) { return {all.at(2), all.at(0)}; }
};
struct OfNest {
  std::tuple<at::Tensor, Words> forward(const Pair& p) { return {p.first.ids, {p.rest[0], p.rest[1]}}; }
};
struct Overloaded {
  at::Tensor forward(const at::Tensor& x) { return x; }
  at::Tensor forward(const at::Tensor& x, int) { return x; }
};

template <typename Net>
std::vector<double> forward(const Tensors& inputs) {
  Net net;
  return values(call_forward(net, inputs));
}

TEST(Nest, AForwardFunctionTakesTheInputs) {
  const Tensors four = {number(1), number(2), number(3), number(4)};
  EXPECT_THAT(forward<OfOne>({number(1)}), ElementsAre(2));
  EXPECT_THAT(forward<OfOneOrTwo>({number(1)}), ElementsAre(1));
  EXPECT_THAT(forward<OfOneOrTwo>({number(1), number(2)}), ElementsAre(3));
  EXPECT_THAT(forward<OfMaybe>({number(3), number(2)}), ElementsAre(6));
  EXPECT_THAT(forward<OfList>(four), ElementsAre(3, 1));
  EXPECT_THAT(forward<OfNest>(four), ElementsAre(1, 3, 4));
  EXPECT_THAT(forward<Overloaded>({number(5)}), ElementsAre(5));
  EXPECT_THAT(fault([&] { forward<OfOne>(four); }), HasSubstr("the data set has 4 input(s)"));
  EXPECT_THAT(fault([&] { forward<OfNest>({number(1)}); }), HasSubstr("the data set has 1 input(s)"));
}

TEST(Batch, HasSeveralTensorsAndParts) {
  const at::Tensor x = torch::arange(6).view({6, 1}), mask = torch::ones({6}, torch::kBool);
  const Batch batch = make_batch({x, mask}, {x + 10, x + 20, x + 30});
  EXPECT_EQ(batch.inputs().size(), 2u);
  EXPECT_EQ(batch.targets().size(), 3u);
  const Batch part = batch.part(2, 3);
  EXPECT_EQ(part.size(), 3);
  EXPECT_TRUE(at::equal(part.more_targets[1], (x + 30).narrow(0, 2, 3)));
  EXPECT_EQ(part.more_inputs[0].scalar_type(), at::kBool);
  EXPECT_TRUE(make_batch({x}, {}).part(0, 2).targets().empty());
  EXPECT_THAT(fault([&] { make_batch({x}, {x, x.narrow(0, 0, 5)}); }), HasSubstr("target 1 has 5 rows"));
  EXPECT_THAT(fault([&] { make_batch({}, {x}); }), HasSubstr("at least one input"));
}

TEST(TensorSource, HasSeveralTensors) {
  const at::Tensor x = torch::arange(4), y = torch::arange(8).view({4, 2});
  const auto source = tensor_source({x, y}, {x + 1, y + 1});
  const Batch batch = source->read({3, 1}, 0);
  EXPECT_TRUE(at::equal(batch.more_inputs.at(0), torch::tensor({{6, 7}, {2, 3}})));
  EXPECT_TRUE(at::equal(batch.more_targets.at(0), torch::tensor({{7, 8}, {3, 4}})));
  EXPECT_TRUE(tensor_source({x, y}, {})->read({0}, 0).targets().empty());
  EXPECT_TRUE(tensor_source({x}, {})->read({0}, 0).targets().empty());
  const auto part = subset_of(source, {2, 3});
  EXPECT_TRUE(at::equal(part->read({1}, 0).more_inputs.at(0), torch::tensor({{6, 7}})));
  EXPECT_TRUE(at::equal(samples_in_memory(source->info(), batch)->read({1}, 0).more_targets.at(0),
                        torch::tensor({{3, 4}})));
}

// The threads of a loader read batches with all their tensors, in order.
TEST(Loader, CarriesSeveralTensors) {
  const at::Tensor x = torch::arange(12);
  for (const int64_t workers : {0, 3}) {
    LoaderOptions options;
    options.global_batch = 6, options.ranks = 2, options.rank = 1, options.workers = workers;
    const auto loader = make_loader(tensor_source({x, x * 2}, {x * 3, x * 4}), options);
    for (int step = 0; step < 5; ++step) {
      const Batch batch = loader->next();
      ASSERT_EQ(batch.size(), 3);
      EXPECT_TRUE(at::equal(batch.more_inputs.at(0), batch.input * 2));
      EXPECT_TRUE(at::equal(batch.target, batch.input * 3));
      EXPECT_TRUE(at::equal(batch.more_targets.at(0), batch.input * 4));
    }
  }
}

Sample sentence(int64_t i) {
  return {{torch::arange(1, 2 + i), torch::scalar_tensor(i)}, {torch::full({1 + i, 2}, i)}};
}

TEST(Collate, PadsToTheLongestOfTheBatch) {
  const auto source = sample_source(4, sentence, padded({.input = 9, .target = -1}));
  const Batch batch = source->read({2, 0}, 0);
  EXPECT_TRUE(at::equal(batch.input, torch::tensor({{1, 2, 3}, {1, 9, 9}})));
  EXPECT_TRUE(at::equal(batch.more_inputs.at(0), torch::tensor({2.0, 0.0}, batch.more_inputs[0].options())));
  EXPECT_TRUE(at::equal(batch.more_inputs.at(1), torch::tensor({3, 1})));
  EXPECT_TRUE(at::equal(batch.target, torch::tensor({{{2, 2}, {2, 2}, {2, 2}}, {{0, 0}, {-1, -1}, {-1, -1}}},
                                                    batch.target.options())));
  EXPECT_EQ(source->read({0}, 0).input.size(1), 1);
}

TEST(Collate, RefusesSamplesThatDoNotFit) {
  const auto plain = sample_source(4, sentence);
  EXPECT_THAT(fault([&] { plain->read({0, 1}, 0); }), HasSubstr("[1] and [2]; use the collate function"));
  const auto wide = [](int64_t i) { return Sample{{torch::zeros({2, i + 1})}}; };
  EXPECT_THAT(fault([&] { sample_source(2, wide, padded())->read({0, 1}, 0); }),
              HasSubstr("only the first dimension"));
  const auto more = [](int64_t i) { return Sample{std::vector<at::Tensor>(1 + i, torch::zeros({1}))}; };
  EXPECT_THAT(fault([&] { sample_source(2, more)->read({0, 1}, 0); }), HasSubstr("have 1 and 2 inputs"));
  EXPECT_THROW(sample_source(0, more), DataError);
}

// Sample i is ({i, {i + 1, i + 2}}, i + 3).
class Nested
    : public torch::data::datasets::Dataset<Nested,
                                            torch::data::Example<std::tuple<at::Tensor, Words>, at::Tensor>> {
 public:
  torch::data::Example<std::tuple<at::Tensor, Words>, at::Tensor> get(size_t i) override {
    const auto of = [i](int64_t n) {
      return torch::scalar_tensor(static_cast<int64_t>(i) + n, torch::kLong);
    };
    return {{of(0), {of(1), of(2)}}, of(3)};
  }
  std::optional<size_t> size() const override { return 4; }
};

class Bare : public torch::data::datasets::Dataset<Bare, torch::data::TensorExample> {
 public:
  torch::data::TensorExample get(size_t i) override { return torch::full({2}, static_cast<double>(i)); }
  std::optional<size_t> size() const override { return 4; }
};

TEST(TorchDataset, ExamplesMayBeNests) {
  const Batch batch = dataset(Nested())->read({3, 0}, 0);
  ASSERT_EQ(batch.inputs().size(), 3u);
  EXPECT_TRUE(at::equal(batch.more_inputs[1], torch::tensor({5, 2})));
  EXPECT_TRUE(at::equal(batch.target, torch::tensor({6, 3})));
  const Batch bare = dataset(Bare(), stacked, "bare")->read({1, 2}, 0);
  EXPECT_TRUE(at::equal(bare.input.select(1, 0), torch::tensor({1.0, 2.0}, bare.input.options())));
  EXPECT_TRUE(bare.targets().empty());
}

TEST(Partition, NeedsOneClassPerSample) {
  const at::Tensor x = torch::arange(6).view({3, 2});
  EXPECT_THAT(fault([&] { labels_of(*tensor_source(x, x)); }),
              HasSubstr("is not one class [n] int64 per sample"));
  EXPECT_THAT(fault([&] { labels_of(*tensor_source({x}, std::vector<at::Tensor>{})); }),
              HasSubstr("is not one class [n] int64 per sample"));
  EXPECT_THAT(fault([&] { labels_of(*tensor_source(x, torch::tensor({0, -1, 2}))); }),
              HasSubstr("set is -1"));
}

}  // namespace
}  // namespace starling
