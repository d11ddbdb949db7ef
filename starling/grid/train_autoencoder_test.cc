// Compares an autoencoder on a grid of processes with a plain one in one process, resumes it, and trains one
// that is larger than the memory of a rank.
#include "starling/grid/train_autoencoder.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torch/csrc/autograd/autograd.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "starling/base/clock.h"
#include "starling/base/error.h"
#include "starling/base/keyed_random.h"
#include "starling/comm/bootstrap.h"
#include "starling/grid/grid_test_parts.h"
#include "starling/nn/layers/image_normalization.h"
#include "starling/nn/layers/locally_connected.h"
#include "starling/testing/temp_dir.h"
#include "starling/torch_testing/tensor_difference.h"
#include "starling/torch_testing/torch_group_processes.h"

namespace starling {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr double kTolerance = 1e-10;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kKernelLimit = false;  // a sanitizer maps far more memory than a limit of data allows
#else
constexpr bool kKernelLimit = true;
#endif

// Two macro layers in fp64, on small images.
GridAutoencoderOptions two_layers() {
  GridAutoencoderOptions options;
  options.images = {2, 18, 20};
  options.layers = {{.maps = 3, .fields = {4, 1, 0}, .pool = {3, 1, 0}, .norm = {.size = 3}},
                    {.maps = 2, .fields = {3, 2, 1}, .pool = {2, 1, 0}, .norm = {.size = 3}}};
  options.sparsity = 0.3;
  options.lr = 0.002;
  options.batch = 4;
  options.steps = 3;
  options.seed = 11;
  options.type = at::kDouble;
  return options;
}

// The batch of a step: a few soft spots on each image.
at::Tensor spots(const GridAutoencoderOptions& options, int64_t step) {
  const ImageSize& size = options.images;
  at::Tensor images = at::zeros({options.batch, size.channels, size.height, size.width}, at::kDouble);
  const at::Tensor rows = at::arange(size.height, at::kDouble), columns = at::arange(size.width, at::kDouble);
  for (int64_t n = 0; n < options.batch; ++n)
    for (int64_t c = 0; c < size.channels; ++c)
      for (uint64_t spot = 0; spot < 3; ++spot) {
        const uint64_t key =
            key_of(static_cast<uint64_t>(step * options.batch + n), static_cast<uint64_t>(c), spot);
        const double row = uniform_of(key) * static_cast<double>(size.height);
        const double column = uniform_of(mix64(key + 1)) * static_cast<double>(size.width);
        images[n][c] +=
            at::outer(at::exp(-(rows - row).square() / 8), at::exp(-(columns - column).square() / 8)) *
            (uniform_of(mix64(key + 2)) - 0.4);
      }
  return images;
}

at::Tensor spots_of_part(const GridAutoencoderOptions& options, int64_t step, const PixelRect& part) {
  return spots(options, step)
      .narrow(2, part.rows.begin, part.rows.count())
      .narrow(3, part.columns.begin, part.columns.count());
}

// A macro layer of one process, made of the layers of nn/layers.
struct PlainMacroLayer {
  LocallyConnected2d encoder, decoder;
  L2Pool2d pool;
  LocalContrastNorm2d norm;
  std::vector<at::Tensor> momenta;

  PlainMacroLayer(const MacroLayerOptions& options, const ImageSize& input, uint64_t seed)
      : encoder(filters(options, input, seed)),
        decoder(filters(options, input, seed)),
        pool(L2PoolOptions{options.pool, options.epsilon}),
        norm(options.norm) {
    at::NoGradGuard no_grad;
    for (LocallyConnected2d layer : {encoder, decoder}) {
      layer->to(at::kDouble);
      fill_with_filters(layer->weight, seed, 0, 0, layer->weight.size(1));
      momenta.push_back(at::zeros_like(layer->weight).detach());
    }
    const auto stride = static_cast<double>(options.fields.stride);
    decoder->weight *= std::min(
        1.0, static_cast<double>(input.channels) * stride * stride / static_cast<double>(options.maps));
  }
  static LocallyConnectedOptions filters(const MacroLayerOptions& options, const ImageSize& input,
                                         uint64_t seed) {
    return {input.channels, input.height, input.width, options.maps, options.fields, false, seed};
  }
  at::Tensor features(const at::Tensor& x) {
    at::NoGradGuard no_grad;
    return norm->forward(pool->forward(encoder->forward(x)));
  }
  // Makes an update and returns the objective before it.
  double learn(const at::Tensor& x, const GridAutoencoderOptions& options) {
    const at::Tensor y = encoder->forward(x);
    const at::Tensor objective =
        ((decoder->adjoint(y) - x).square().sum() + options.sparsity * pool->forward(y).sum()) / x.size(0);
    objective.backward();
    at::NoGradGuard no_grad;
    std::vector<at::Tensor> weights = {encoder->weight, decoder->weight};
    for (size_t i = 0; i < 2; ++i) {
      momenta[i] = options.momentum * momenta[i] - options.lr * weights[i].grad();
      weights[i].mutable_grad().reset();
      weights[i] += momenta[i];
    }
    encoder->weight /= encoder->weight.norm(2, {-1}, /*keepdim=*/true);
    return objective.item<double>();
  }
};

// What one process learns: W and V of each layer, and the last objective of each layer.
struct PlainRun {
  std::vector<at::Tensor> filters;
  std::vector<double> objectives;
};
PlainRun plain_run(const GridAutoencoderOptions& options) {
  PlainRun run;
  std::vector<PlainMacroLayer> layers;
  ImageSize size = options.images;
  for (size_t l = 0; l < options.layers.size(); ++l) {
    layers.emplace_back(options.layers[l], size, key_of(options.seed, l, 0));
    size = macro_layer_output(options.layers[l], size);
  }
  for (size_t l = 0; l < layers.size(); ++l) {
    double objective = 0;
    for (int64_t step = 0; step < options.steps; ++step) {
      at::Tensor x = spots(options, static_cast<int64_t>(l) * options.steps + step);
      for (size_t below = 0; below < l; ++below) x = layers[below].features(x);
      objective = layers[l].learn(x, options);
    }
    run.objectives.push_back(objective);
  }
  for (PlainMacroLayer& layer : layers) {
    run.filters.push_back(layer.encoder->weight.detach());
    run.filters.push_back(layer.decoder->weight.detach());
  }
  return run;
}

// What a test changes in a run.
struct RunChanges {
  const std::atomic<bool>* stop = nullptr;
  std::function<void(const GridAutoencoderStep&)> on_step = {};
};

// Trains on this rank. Its numbers are its parts of W and V of each layer.
GridAutoencoderResult train_rank(const GridAutoencoderOptions& options, const RankGrid& grid, Group& group,
                                 std::vector<double>* filters, const RunChanges& changes = {}) {
  const SystemClock clock;
  return train_grid_autoencoder(
      options,
      {.group = group,
       .grid = grid,
       .images = [&](int64_t step, const PixelRect& part) { return spots_of_part(options, step, part); },
       .clock = clock,
       .stop = changes.stop,
       .on_step = changes.on_step,
       .on_end =
           [&](const std::vector<MacroLayer*>& layers) {
             if (filters == nullptr) return;
             for (MacroLayer* layer : layers) {
               append_numbers(*filters, layer->encoder()->weight);
               append_numbers(*filters, layer->decoder()->weight);
             }
           }});
}

// Trains on a grid of processes. Each rank's numbers: its filters, then what `report` makes of its result.
template <typename Report>
WholeTensors train_processes(const GridAutoencoderOptions& options, const RankGrid& grid,
                             const Report& report) {
  return {grid, numbers_in_files(grid.size(), [&](Group& group) {
            std::vector<double> numbers;
            const GridAutoencoderResult result = train_rank(options, grid, group, &numbers);
            report(result, numbers);
            return numbers;
          })};
}
WholeTensors train_processes(const GridAutoencoderOptions& options, const RankGrid& grid) {
  return train_processes(options, grid, [](const GridAutoencoderResult&, std::vector<double>&) {});
}

TEST(GridAutoencoder, LearnsWhatAPlainOneLearnsAndSendsItsHalos) {
  const GridAutoencoderOptions options = two_layers();
  const PlainRun plain = plain_run(options);
  for (const RankGrid& grid :
       {RankGrid{1, 1}, RankGrid{1, 2}, RankGrid{2, 2}, RankGrid{2, 4}, RankGrid{3, 2}}) {
    SCOPED_TRACE(text_of(grid));
    WholeTensors found = train_processes(
        options, grid, [&](const GridAutoencoderResult& result, std::vector<double>& numbers) {
          for (const GridAutoencoderStep& last : result.layers) numbers.push_back(last.objective);
          numbers.push_back(static_cast<double>(result.halo_bytes));
          numbers.push_back(static_cast<double>(result.halo_bytes_formula));
          numbers.push_back(static_cast<double>(result.parameters));
        });
    for (const at::Tensor& filters : plain.filters)
      EXPECT_LT(relative_difference(found.positions(filters.sizes()), filters), kTolerance);
    for (const double objective : plain.objectives)
      EXPECT_NEAR(found.sum() / grid.size() / objective, 1, kTolerance);
    const double bytes = found.sum() / grid.size(), formula = found.sum() / grid.size();
    EXPECT_EQ(bytes, formula);
    EXPECT_EQ(bytes > 0, grid.size() > 1);
    double parameters = 0;
    for (const at::Tensor& filters : plain.filters) parameters += static_cast<double>(filters.numel());
    EXPECT_EQ(found.sum() / grid.size(), parameters);
    EXPECT_TRUE(found.at_end());
  }
}

// The formula of a whole run, written out for a grid of two ranks in one row.
TEST(GridAutoencoder, TheBytesOfTwoRanksByHand) {
  GridAutoencoderOptions options;
  options.images = {3, 10, 16};
  options.layers = {{.maps = 5, .fields = {5, 1, 2}, .pool = {3, 1, 1}, .norm = {.size = 7}},
                    {.maps = 2, .fields = {3, 1, 1}, .pool = {1, 1, 0}, .norm = {.size = 1}}};
  options.batch = 7;
  options.steps = 4;
  // Two columns of 10 pixels cross the border in each direction for fields of 5, one for pools of 3, three
  // for norms of 7.
  const uint64_t fields = 7 * 3 * 2 * 2 * 10, pools = 7 * 5 * 2 * 1 * 10, norms = 7 * 2 * 3 * 10;
  const uint64_t second = 7 * 5 * 2 * 1 * 10;
  const uint64_t first_layer = 3 * fields + 2 * pools;
  const uint64_t second_layer = fields + pools + 2 * norms + 3 * second;
  EXPECT_EQ(grid_halo_bytes(options, {1, 2}, 0, 8), 4 * 4 * (first_layer + second_layer));
  EXPECT_EQ(grid_halo_bytes(options, {1, 2}, 3, 5), 4 * (first_layer + second_layer));
  options.type = at::kDouble;
  EXPECT_EQ(grid_halo_bytes(options, {1, 2}, 0, 1), 8 * first_layer);
  EXPECT_EQ(grid_halo_bytes(options, {1, 1}, 0, 8), 0u);
}

TEST(GridAutoencoder, AResumedRunIsBitForBitTheRunThatWasNotStopped) {
  for (const int64_t stop_after : {2, 3, 5}) {  // inside of a layer, between two layers, in the second one
    SCOPED_TRACE(stop_after);
    const RankGrid grid{2, 2};
    const PlainRun sizes = plain_run(two_layers());
    const TempDir folder;
    GridAutoencoderOptions options = two_layers();
    options.checkpoint = folder.path();
    options.checkpoint_every = 0;
    WholeTensors stopped(grid, numbers_in_files(grid.size(), [&](Group& group) {
                           std::atomic<bool> stop{false};
                           int64_t steps = 0;
                           const auto on_step = [&](const GridAutoencoderStep&) {
                             // Rank 2 is asked to stop during the step, and all ranks stop after it.
                             if (++steps == stop_after - 1 && group.rank() == 2) stop = true;
                           };
                           const GridAutoencoderResult result =
                               train_rank(options, grid, group, nullptr, {&stop, on_step});
                           return std::vector<double>{static_cast<double>(result.interrupted),
                                                      static_cast<double>(result.steps)};
                         }));
    EXPECT_EQ(stopped.sum(), grid.size());
    EXPECT_EQ(stopped.sum(), static_cast<double>(stop_after * grid.size()));
    WholeTensors resumed =
        train_processes(options, grid, [](const GridAutoencoderResult& result, std::vector<double>& numbers) {
          numbers.push_back(static_cast<double>(result.resumed_from));
          numbers.push_back(static_cast<double>(result.halo_bytes));
          numbers.push_back(static_cast<double>(result.halo_bytes_formula));
        });
    WholeTensors whole = train_processes(two_layers(), grid);
    for (const at::Tensor& filters : sizes.filters)
      EXPECT_TRUE(at::equal(resumed.positions(filters.sizes()), whole.positions(filters.sizes())));
    EXPECT_EQ(resumed.sum(), static_cast<double>(stop_after * grid.size()));
    EXPECT_EQ(resumed.sum(), resumed.sum());
  }
}

TEST(GridAutoencoder, AnotherGridGoesOnFromACheckpoint) {
  const TempDir folder;
  GridAutoencoderOptions options = two_layers();
  const PlainRun plain = plain_run(options);
  options.checkpoint = folder.path();
  options.checkpoint_every = 2;
  std::vector<RankGrid> grids = {{2, 3}, {1, 1}, {4, 2}};
  for (size_t i = 0; i < grids.size(); ++i) {
    const RankGrid& grid = grids[i];
    WholeTensors found(grid, numbers_in_files(grid.size(), [&](Group& group) {
                         std::atomic<bool> stop{i + 1 < grids.size()};  // after one step
                         std::vector<double> numbers;
                         const GridAutoencoderResult result =
                             train_rank(options, grid, group, &numbers, {.stop = &stop});
                         numbers.push_back(static_cast<double>(result.resumed_from));
                         return numbers;
                       }));
    if (i + 1 < grids.size()) continue;
    for (const at::Tensor& filters : plain.filters)
      EXPECT_LT(relative_difference(found.positions(filters.sizes()), filters), kTolerance);
    EXPECT_EQ(found.sum() / grid.size(), 2);
  }
}

std::string refusal(const GridAutoencoderOptions& options) {
  const auto group = make_single_group();
  try {
    train_rank(options, {1, 1}, *group, nullptr);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(GridAutoencoder, ACheckpointOfAnotherProblemOrADamagedOneIsRefused) {
  const TempDir folder;
  GridAutoencoderOptions options = two_layers();
  options.checkpoint = folder.path();
  ASSERT_EQ(refusal(options), "");
  GridAutoencoderOptions other = options;
  other.sparsity = 0.5;
  EXPECT_THAT(refusal(other), HasSubstr("sparsity"));
  other = options;
  other.layers[1].pool.size = 3;
  EXPECT_THAT(refusal(other), HasSubstr("layer-2"));
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    if (entry.path().extension() == ".json") continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(200);
    file.put('\x55');
  }
  EXPECT_THAT(refusal(options), HasSubstr("damaged"));
}

// Without an agreement, the other rank would train and then lose its peer.
TEST(GridAutoencoder, ADamagedPartOfOneRankEndsAllRanksWithItsError) {
  const TempDir folder;
  const RankGrid grid{1, 2};
  GridAutoencoderOptions options = two_layers();
  options.checkpoint = folder.path();
  train_processes(options, grid);
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    if (!entry.path().string().ends_with("-1-of-2")) continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(200);
    file.put('\x55');
  }
  WholeTensors found(grid, numbers_in_files(grid.size(), [&](Group& group) {
                       try {
                         train_rank(options, grid, group, nullptr);
                         return std::vector<double>{0};
                       } catch (const Error& error) {
                         const bool named = error.code() == ErrorCode::kCheckpoint &&
                                            std::string(error.what()).find("-1-of-2") != std::string::npos;
                         return std::vector<double>{named ? 1.0 : -1.0};
                       }
                     }));
  EXPECT_EQ(found.sum(), 2);
}

TEST(GridAutoencoder, WhatTrainsNothingIsRefused) {
  GridAutoencoderOptions options = two_layers();
  options.layers.clear();
  EXPECT_THAT(refusal(options), HasSubstr("at least one layer"));
  options = two_layers();
  options.layers[1].fields.size = 30;
  EXPECT_THAT(refusal(options), StartsWith("--fields, --strides: layer 2: windows of 30 pixels do not fit"));
  options = two_layers();
  options.layers[0].pool.size = 30;
  EXPECT_THAT(refusal(options), StartsWith("--pools, --pool-strides: layer 1: pools of 30"));
  options = two_layers();
  options.layers[1].pool.stride = 0;
  EXPECT_THAT(refusal(options), StartsWith("--pools, --pool-strides: layer 2: size 2, stride 0"));
  options = two_layers();
  options.layers[0].norm.size = 2;
  EXPECT_THAT(refusal(options),
              HasSubstr("--norms: layer 1: a normalization window of 2 pixels has no center"));
  options.layers[0].norm.size = 2 * 15 - 1;  // the pools have 13 × 15 positions
  EXPECT_EQ(refusal(options), "");
  options.layers[0].norm.size = 2 * 15 + 1;
  EXPECT_THAT(refusal(options), HasSubstr("--norms: layer 1: a normalization window of 31 pixels is wider"));
  options = two_layers();
  options.layers[1].maps = 0;
  EXPECT_THAT(refusal(options), StartsWith("--maps: layer 2: "));
  options = two_layers();
  options.momentum = 1;
  EXPECT_THAT(refusal(options), HasSubstr("--momentum"));
  options = two_layers();
  options.lr = 1e200;
  EXPECT_THAT(refusal(options), AllOf(HasSubstr("diverges"), HasSubstr("decrease --lr")));
  for (const double sparsity : {1e39, 1e300}) {  // a penalty that overflows, at once or by its gradients
    options = two_layers();
    options.type = at::kFloat;
    options.sparsity = sparsity;
    EXPECT_THAT(refusal(options), AllOf(HasSubstr("diverges"), HasSubstr("decrease --sparsity"))) << sparsity;
  }
  options = two_layers();
  EXPECT_THROW(check_grid_autoencoder(options, {9, 1}), ConfigError);
  check_grid_autoencoder(options, {4, 2});
}

TEST(GridAutoencoder, StepsThatCannotBeCountedAreRefused) {
  GridAutoencoderOptions options = two_layers();
  const int64_t most = most_autoencoder_steps(options);
  EXPECT_EQ(most, std::numeric_limits<int64_t>::max() / 2 / 4 / 2);
  options.steps = most + 1;
  EXPECT_THAT(refusal(options), HasSubstr("--steps: "));
  options.steps = std::numeric_limits<int64_t>::max() / 2 + 1;  // twice this is negative
  EXPECT_THAT(refusal(options), HasSubstr("--steps: "));
  options.steps = most;
  check_grid_autoencoder(options, {1, 2});
  EXPECT_GT(grid_halo_bytes(options, {1, 2}, 0, 1000), 0u);
  EXPECT_THROW(grid_halo_bytes(options, {1, 2}, 0, 2 * most), ConfigError);
}

TEST(GridAutoencoder, AStateThatCannotBeCountedIsTheLargestNumber) {
  GridAutoencoderOptions options = two_layers();
  EXPECT_EQ(grid_state_bytes(options, {1, 1}), 8 * grid_state_numbers(options, {1, 1}, 0));
  const int64_t largest = std::numeric_limits<int64_t>::max();
  options.layers[0].maps = int64_t{1} << 57;  // times 2 · 240 positions · 32 inputs
  EXPECT_EQ(grid_state_numbers(options, {1, 1}, 0), largest);
  EXPECT_EQ(grid_state_bytes(options, {1, 1}), largest);
  options.layers[0].maps = int64_t{1} << 46;  // the numbers fit, and their bytes do not
  options.layers.resize(1);
  EXPECT_LT(grid_state_numbers(options, {1, 1}, 0), largest);
  EXPECT_EQ(grid_state_bytes(options, {1, 1}), largest);
}

TEST(GridAutoencoder, LearnsToReconstructAndThePenaltyMakesItSparse) {
  GridAutoencoderOptions options = two_layers();
  options.layers.resize(1);
  options.steps = 150;
  options.lr = 0.02;
  options.batch = 8;
  std::vector<GridAutoencoderStep> last;
  double first_error = 0;
  for (const double sparsity : {0.0, 0.05}) {
    options.sparsity = sparsity;
    const auto group = make_single_group();
    RunChanges changes;
    changes.on_step = [&](const GridAutoencoderStep& step) {
      if (step.step == 1) first_error = step.error;
    };
    last.push_back(train_rank(options, {1, 1}, *group, nullptr, changes).layers.back());
    EXPECT_LT(last.back().error, 0.5 * first_error);
  }
  EXPECT_LT(last[0].error, 0.07);
  EXPECT_LT(last[1].response, 0.8 * last[0].response);
  EXPECT_GT(last[1].sparseness, last[0].sparseness);
}

// The private memory of this process that RLIMIT_DATA counts, in bytes.
size_t private_memory() {
  std::ifstream statm("/proc/self/statm");
  size_t field = 0, data = 0;
  for (int i = 0; i < 6 && statm >> field; ++i) data = field;  // the sixth field: data and stack
  return data * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

// What a rank keeps while it learns is four times a limit that the kernel enforces on its data. On one rank
// the training fails for want of memory. Eight ranks learn.
TEST(GridAutoencoder, AModelFourTimesARanksLimit) {
  GridAutoencoderOptions options;
  options.images = {3, 64, 64};
  options.layers = {{.maps = 8, .fields = {9, 1, 0}, .pool = {3, 1, 0}}};
  options.batch = 1;
  options.steps = 2;
  options.lr = 1e-4;
  const size_t state = static_cast<size_t>(grid_state_numbers(options, {1, 1}, 0)) * sizeof(float);
  const size_t limit = state / 4;
  for (const RankGrid& grid : {RankGrid{2, 4}, RankGrid{1, 1}}) {
    const auto found = numbers_in_files(grid.size(), [&](Group& group) {
      const size_t room = private_memory() + limit;
      const rlimit bound{room, room};
      if (kKernelLimit && setrlimit(RLIMIT_DATA, &bound) != 0) throw Error(ErrorCode::kInternal, "setrlimit");
      try {
        const GridAutoencoderResult result = train_rank(options, grid, group, nullptr);
        return std::vector<double>{static_cast<double>(result.steps), result.layers.back().error};
      } catch (const std::exception& error) {
        if (grid.size() > 1) throw;
        return std::vector<double>{-1, 0};
      }
    });
    for (const std::vector<double>& rank : found) {
      const bool fits = grid.size() > 1 || !kKernelLimit;
      EXPECT_EQ(rank[0], fits ? 2 : -1) << "state of " << state << " bytes, limit of " << limit;
    }
  }
}

}  // namespace
}  // namespace starling
