#include "starling/grid/macro_layer.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

#include "starling/base/error.h"

namespace starling {
namespace {

LocallyConnectedOptions filters_of(const MacroLayerOptions& options, const ImageSize& input, uint64_t seed) {
  return {.channels = input.channels,
          .height = input.height,
          .width = input.width,
          .maps = options.maps,
          .windows = options.fields,
          .bias = false,
          .seed = seed};
}

// The output positions of the filters.
ImageSize filter_positions(const MacroLayerOptions& options, const ImageSize& input) {
  check_locally_connected(filters_of(options, input, 0));
  return {options.maps, options.fields.positions(input.height), options.fields.positions(input.width)};
}

// The inverse of the mean eigenvalue of Wᵀ W for random filters of norm 1: (maps / stride²) of them begin at
// a pixel, and each has its share of channels · size² directions.
double first_decoder_scale(const MacroLayerOptions& options, const ImageSize& input) {
  const int64_t directions = input.channels * options.fields.stride * options.fields.stride;
  return std::min(1.0, static_cast<double>(directions) / static_cast<double>(options.maps));
}

double sum_of_squares(const at::Tensor& x) {
  return (x * x).sum(at::kDouble).item<double>();
}

}  // namespace

ImageSize macro_layer_output(const MacroLayerOptions& options, const ImageSize& input) {
  const ImageWindows& pool = options.pool;
  const ImageSize positions = filter_positions(options, input);
  check_windows(pool, "pool");
  if (pool.positions(positions.height) < 1 || pool.positions(positions.width) < 1)
    throw ConfigError(
        "pool", fmt::format("pools of {} positions do not fit into {} × {} positions of filters", pool.size,
                            positions.height, positions.width));
  check_contrast_norm(options.norm);
  const ImageSize output = {options.maps, pool.positions(positions.height), pool.positions(positions.width)};
  const int64_t widest = 2 * std::max(output.height, output.width) - 1;
  if (options.norm.size > widest)
    throw ConfigError("size",
                      fmt::format("a normalization window of {} pixels is wider than all {} × {} pools "
                                  "around any of them; use at most {}",
                                  options.norm.size, output.height, output.width, widest));
  return output;
}

MacroLayer::MacroLayer(GridGroup& grid, const MacroLayerOptions& options, const ImageSize& input,
                       uint64_t seed, at::ScalarType type)
    : options_(options),
      positions_(filter_positions(options, input)),
      output_(macro_layer_output(options, input)),
      encoder_(grid, filters_of(options, input, seed), type),
      decoder_(grid, filters_of(options, input, seed), type),
      pool_(grid, L2PoolOptions{options.pool, options.epsilon}, positions_.height, positions_.width),
      norm_(grid, options.norm, output_.height, output_.width) {
  at::NoGradGuard no_grad;
  decoder_->weight.mul_(first_decoder_scale(options, input));
}

at::Tensor MacroLayer::features(const at::Tensor& x) {
  at::NoGradGuard no_grad;
  return norm_->forward(pool_->forward(encoder_->forward(x)));
}

AutoencoderSums MacroLayer::learn(const at::Tensor& x, double sparsity) {
  const at::Tensor y = encoder_->forward(x);
  const at::Tensor difference = decoder_->adjoint(y) - x;
  const at::Tensor pools = pool_->forward(y);
  const at::Tensor objective = (difference * difference).sum() + sparsity * pools.sum();
  (objective / x.size(0)).backward();
  at::NoGradGuard no_grad;
  return {.error = sum_of_squares(difference),
          .square = sum_of_squares(x),
          .response = pools.sum(at::kDouble).item<double>(),
          .response_square = sum_of_squares(pools)};
}

MacroLayerHalos macro_layer_halos(const RankGrid& grid, const MacroLayerOptions& options,
                                  const ImageSize& input, int64_t samples) {
  const ImageSize positions = filter_positions(options, input), output = macro_layer_output(options, input);
  const int64_t fields =
      samples * input.channels * halo_pixels(grid, options.fields, input.height, input.width);
  const int64_t pools =
      samples * options.maps * halo_pixels(grid, options.pool, positions.height, positions.width);
  const int64_t means = samples * halo_pixels(grid, GridLocalContrastNorm2dImpl::windows_of(options.norm),
                                              output.height, output.width);
  // learn(): x for the filters, the decoded pixels and their gradients; the pools' input and its gradient.
  return {.features = fields + pools + 2 * means, .learning = 3 * fields + 2 * pools};
}

}  // namespace starling
