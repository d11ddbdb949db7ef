// Compares the layers of a grid of processes with those of one process, in fp64, and counts what they send.
#include "starling/grid/grid_layers.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <string>
#include <vector>

#include "starling/base/error.h"
#include "starling/comm/bootstrap.h"
#include "starling/grid/grid_test_parts.h"
#include "starling/grid/macro_layer.h"
#include "starling/torch_testing/tensor_difference.h"
#include "starling/torch_testing/torch_group_processes.h"

namespace starling {
namespace {

using ::testing::HasSubstr;

constexpr double kTolerance = 1e-10;
constexpr int64_t kSamples = 3, kUpdates = 4;
constexpr double kLearningRate = 0.02;

// Two locally connected layers with pooling and normalization between them.
struct NetworkCase {
  RankGrid grid;
  int64_t height = 12, width = 14;
  ImageWindows first = {3, 1, 1}, pool = {3, 1, 0}, second = {3, 1, 0};
  int64_t norm = 5;

  LocallyConnectedOptions first_options() const {
    return {.channels = 2, .height = height, .width = width, .maps = 3, .windows = first, .seed = 1};
  }
  int64_t rows() const { return first.positions(height); }
  int64_t columns() const { return first.positions(width); }
  int64_t pooled_rows() const { return pool.positions(rows()); }
  int64_t pooled_columns() const { return pool.positions(columns()); }
  LocallyConnectedOptions second_options() const {
    return {.channels = 3,
            .height = pooled_rows(),
            .width = pooled_columns(),
            .maps = 2,
            .windows = second,
            .seed = 2};
  }
  at::Tensor input() const {
    at::manual_seed(8);
    return at::randn({kSamples, 2, height, width}, at::kDouble);
  }
  at::Tensor target() const {
    at::manual_seed(9);
    return at::randn({kSamples, 2, second.positions(pooled_rows()), second.positions(pooled_columns())},
                     at::kDouble);
  }
};

std::vector<NetworkCase> network_cases() {
  std::vector<NetworkCase> cases = {{.grid = {1, 2}}, {.grid = {2, 2}}, {.grid = {2, 4}}, {.grid = {3, 2}}};
  cases.push_back({.grid = {2, 3},
                   .height = 17,
                   .width = 19,
                   .first = {4, 2, 0},
                   .pool = {2, 2, 0},
                   .second = {2, 1, 0}});
  cases.push_back(
      {.grid = {2, 4}, .height = 15, .width = 17, .first = {2, 1, 0}, .pool = {5, 2, 2}, .norm = 9});
  return cases;
}

// Trains a network for some updates. `layers` is a function x -> y of this process.
template <typename First, typename Second, typename Between>
at::Tensor train_network(First& first, Second& second, const Between& between, const at::Tensor& input,
                         const at::Tensor& target) {
  at::Tensor gradient;
  for (int64_t update = 0; update < kUpdates; ++update) {
    const at::Tensor x = input.clone().requires_grad_();
    const at::Tensor difference = second->forward(between(first->forward(x))) - target;
    ((difference * difference).sum() / kSamples).backward();
    gradient = x.grad();
    at::NoGradGuard no_grad;
    for (const at::Tensor& parameter : {first->weight, first->bias, second->weight, second->bias}) {
      parameter.add_(parameter.grad(), -kLearningRate);
      parameter.mutable_grad().reset();
    }
  }
  return gradient;
}

// The numbers of one rank: its parts of the parameters and of the input's gradient, and the bytes of halos.
std::vector<double> rank_of_network(const NetworkCase& test, Group& group) {
  GridGroup grid(group, test.grid);
  GridLocallyConnected2d first(grid, test.first_options(), at::kDouble);
  GridL2Pool2d pool(grid, L2PoolOptions{.windows = test.pool}, test.rows(), test.columns());
  GridLocalContrastNorm2d norm(grid, ContrastNormOptions{.size = test.norm}, test.pooled_rows(),
                               test.pooled_columns());
  GridLocallyConnected2d second(grid, test.second_options(), at::kDouble);
  const auto between = [&](const at::Tensor& y) { return norm->forward(pool->forward(y)); };
  const at::Tensor gradient =
      train_network(first, second, between, image_part(test.input(), test.grid, group.rank()),
                    image_part(test.target(), test.grid, group.rank()));
  std::vector<double> numbers;
  append_numbers(numbers, first->weight);
  append_numbers(numbers, first->bias);
  append_numbers(numbers, second->weight);
  append_numbers(numbers, second->bias);
  append_numbers(numbers, gradient);
  numbers.push_back(static_cast<double>(grid.traffic().sent_bytes));
  return numbers;
}

// The bytes of halos of all ranks. Each layer moves its halo forward and backward.
double expected_bytes(const NetworkCase& test) {
  const auto pixels = [&](const ImageWindows& windows, int64_t height, int64_t width) {
    return halo_pixels(test.grid, windows, height, width);
  };
  const int64_t numbers =
      2 * pixels(test.first, test.height, test.width) + 3 * pixels(test.pool, test.rows(), test.columns()) +
      2 * pixels({test.norm, 1, test.norm / 2}, test.pooled_rows(), test.pooled_columns()) +
      3 * pixels(test.second, test.pooled_rows(), test.pooled_columns());
  return static_cast<double>(2 * numbers * kSamples * kUpdates * int64_t{sizeof(double)});
}

TEST(GridLayers, ANetworkOnAGridLearnsWhatOneProcessLearns) {
  for (const NetworkCase& test : network_cases()) {
    SCOPED_TRACE(text_of(test.grid));
    LocallyConnected2d first(test.first_options()), second(test.second_options());
    first->to(at::kDouble);
    second->to(at::kDouble);
    {
      at::NoGradGuard no_grad;  // filters in fp64, whose bits fp32 cannot hold
      fill_with_filters(first->weight, 1, 0, 0, first->weight.size(1));
      fill_with_filters(second->weight, 2, 0, 0, second->weight.size(1));
    }
    L2Pool2d pool(L2PoolOptions{.windows = test.pool});
    LocalContrastNorm2d norm(ContrastNormOptions{.size = test.norm});
    const at::Tensor before = first->weight.detach().clone();
    const at::Tensor gradient = train_network(
        first, second, [&](const at::Tensor& y) { return norm->forward(pool->forward(y)); }, test.input(),
        test.target());
    WholeTensors found(test.grid, numbers_in_files(test.grid.size(), [&](Group& group) {
                         return rank_of_network(test, group);
                       }));
    EXPECT_GT(relative_difference(first->weight.detach(), before), 1e-3) << "the updates matter";
    for (const at::Tensor& expected : {first->weight, first->bias, second->weight, second->bias})
      EXPECT_LT(relative_difference(found.positions(expected.sizes()), expected.detach()), kTolerance);
    EXPECT_LT(relative_difference(found.image(gradient.sizes()), gradient), kTolerance);
    EXPECT_EQ(found.sum(), expected_bytes(test));
    EXPECT_TRUE(found.at_end());
  }
}

// The adjoint map sends halos of results forward, and halos of gradients backward.
TEST(GridLayers, TheAdjointIsThatOfOneProcess) {
  for (const RankGrid& grid : {RankGrid{1, 1}, RankGrid{2, 2}, RankGrid{2, 4}, RankGrid{3, 1}}) {
    SCOPED_TRACE(text_of(grid));
    const LocallyConnectedOptions options{
        .channels = 2, .height = 13, .width = 16, .maps = 3, .windows = {5, 1, 2}, .bias = false, .seed = 4};
    at::manual_seed(10);
    const at::Tensor y = at::randn({2, 3, 13, 16}, at::kDouble), dx = at::randn({2, 2, 13, 16}, at::kDouble);
    const auto pass = [&](auto& layer, const at::Tensor& own_y, const at::Tensor& own_dx) {
      const at::Tensor leaf = own_y.clone().requires_grad_();
      const at::Tensor x = layer->adjoint(leaf);
      x.backward(own_dx);
      return std::vector<at::Tensor>{x.detach(), leaf.grad(), layer->weight.grad()};
    };
    LocallyConnected2d whole(options);
    whole->to(at::kDouble);
    {
      at::NoGradGuard no_grad;
      fill_with_filters(whole->weight, 4, 0, 0, 16);
    }
    const std::vector<at::Tensor> expected = pass(whole, y, dx);
    WholeTensors found(grid, numbers_in_files(grid.size(), [&](Group& group) {
                         GridGroup ranks(group, grid);
                         GridLocallyConnected2d layer(ranks, options, at::kDouble);
                         std::vector<double> numbers;
                         for (const at::Tensor& tensor : pass(layer, image_part(y, grid, group.rank()),
                                                              image_part(dx, grid, group.rank())))
                           append_numbers(numbers, tensor);
                         return numbers;
                       }));
    // Each rank appends its three tensors one after another, as the test reads them.
    EXPECT_LT(relative_difference(found.image(expected[0].sizes()), expected[0]), kTolerance);
    EXPECT_LT(relative_difference(found.image(expected[1].sizes()), expected[1]), kTolerance);
    EXPECT_LT(relative_difference(found.positions(expected[2].sizes()), expected[2]), kTolerance);
    EXPECT_TRUE(found.at_end());
  }
}

// <gather(x), z> = <x, scatter(z)> over all ranks, also if windows leave gaps.
TEST(GridLayers, ScatterIsTheAdjointOfGather) {
  for (const ImageWindows& windows : {ImageWindows{3, 1, 1}, ImageWindows{2, 3, 0}, ImageWindows{7, 2, 3}}) {
    const RankGrid grid{2, 2};
    WholeTensors found(grid, numbers_in_files(grid.size(), [&](Group& group) {
                         GridGroup ranks(group, grid);
                         HaloExchange halo(ranks, windows, 11, 12);
                         at::manual_seed(20 + group.rank());
                         const HaloPlan& plan = halo.plan();
                         const at::Tensor x =
                             at::randn({2, 3, plan.own.rows.count(), plan.own.columns.count()}, at::kDouble);
                         const at::Tensor z = at::randn(
                             {2, 3, plan.covered.rows.count(), plan.covered.columns.count()}, at::kDouble);
                         return std::vector<double>{(halo.gather(x) * z).sum().item<double>(),
                                                    (halo.scatter(z) * x).sum().item<double>()};
                       }));
    const double forward = found.sum(), backward = found.sum();
    EXPECT_NEAR(forward, backward, 1e-11);
    EXPECT_NE(forward, 0);
  }
}

TEST(GridLayers, AGridOfAnotherSizeIsRefused) {
  const auto group = make_single_group();
  try {
    const GridGroup ranks(*group, {2, 2});
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("a grid of 2x2 needs 4 ranks, but the group has 1"));
  }
}

TEST(GridLayers, OptionsAreCheckedAsInOneProcess) {
  const auto group = make_single_group();
  GridGroup grid(*group, {1, 1});
  EXPECT_THROW(
      GridLocallyConnected2d(grid, LocallyConnectedOptions{.height = 3, .width = 3, .windows = {4, 1, 0}}),
      ConfigError);
  EXPECT_THROW(GridLocalContrastNorm2d(grid, ContrastNormOptions{.size = 2}, 5, 5), ConfigError);
}

TEST(GridLayers, AStrideOfZeroIsRefused) {
  const auto group = make_single_group();
  GridGroup grid(*group, {1, 1});
  const ImageWindows windows{2, 0, 0};
  EXPECT_THROW(halo_plan({1, 1}, 0, windows, 8, 8), ConfigError);
  EXPECT_THROW(halo_pixels({1, 1}, windows, 8, 8), ConfigError);
  EXPECT_THROW(HaloExchange(grid, windows, 8, 8), ConfigError);
  EXPECT_THROW(GridL2Pool2d(grid, L2PoolOptions{.windows = windows}, 8, 8), ConfigError);
  const MacroLayerOptions options{.fields = windows};
  EXPECT_THROW(MacroLayer(grid, options, ImageSize{1, 8, 8}, 0, at::kFloat), ConfigError);
  EXPECT_THROW(macro_layer_halos({1, 1}, options, {1, 8, 8}, 1), ConfigError);
}

// A rank that sent before its check would leave the other ones with messages of a wrong length.
TEST(GridLayers, AnInputThatIsNotThisRanksPartIsRefusedBeforeItIsSent) {
  const RankGrid grid{1, 2};
  WholeTensors found(
      grid, numbers_in_files(grid.size(), [&](Group& group) {
        GridGroup ranks(group, grid);
        HaloExchange halo(ranks, {3, 1, 1}, 6, 8);
        const uint64_t before = group.traffic().sent();
        std::vector<at::Tensor> wrong = {{},
                                         at::zeros({2, 6, 4}),
                                         at::zeros({2, 1, 6, 8}),
                                         at::zeros({2, 1, 5, 4}),
                                         at::zeros({2, 1, 6, 4}, at::kMeta)};
        double refused = 0;
        for (const at::Tensor& x : wrong) {
          try {
            halo.gather(x);
          } catch (const ConfigError& error) {
            refused += std::string(error.what()).find("[samples, channels, 6, 4]") != std::string::npos;
          }
        }
        const auto sent = static_cast<double>(group.traffic().sent() - before);
        return std::vector<double>{refused, sent, halo.gather(at::ones({2, 1, 6, 4})).sum().item<double>()};
      }));
  EXPECT_EQ(found.sum(), 2 * 5);
  EXPECT_EQ(found.sum(), 0);
  EXPECT_EQ(found.sum(), 2 * 2 * 6 * 5);  // each rank covers its own columns and one more
}

}  // namespace
}  // namespace starling
