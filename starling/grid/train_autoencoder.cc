#include "starling/grid/train_autoencoder.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <memory>

#include "starling/base/error.h"
#include "starling/base/keyed_random.h"
#include "starling/grid/autoencoder_checkpoint.h"

namespace starling {
namespace {

constexpr double kDiverged = 1e3;  // an error that no useful training has, relative to x²

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

// Returns a product of numbers that are at least 0, or kMost if it is larger.
int64_t product_of(std::initializer_list<int64_t> factors) {
  int64_t product = 1;
  if (std::find(factors.begin(), factors.end(), 0) != factors.end()) return 0;
  for (const int64_t factor : factors)
    if (__builtin_mul_overflow(product, factor, &product)) return kMost;
  return product;
}

// Returns a sum of numbers that are at least 0, or kMost if it is larger.
int64_t sum_of(int64_t a, int64_t b) {
  int64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? kMost : sum;
}

// Throws the error of a layer with its number and the flag for what is wrong.
[[noreturn]] void refuse_layer(size_t l, const ConfigError& error) {
  const std::string& where = error.where();
  const std::string message = std::string(error.what()).substr(where.empty() ? 0 : where.size() + 2);
  const std::string flag = where == "windows"          ? "--fields, --strides"
                           : where == "pool"           ? "--pools, --pool-strides"
                           : where == "size"           ? "--norms"
                           : where == "channels, maps" ? "--maps"
                                                       : where;
  throw ConfigError(flag, fmt::format("layer {}: {}", l + 1, message));
}

// Returns the input sizes of all layers, and the size of the last output. Errors: ConfigError that names the
// layer.
std::vector<ImageSize> layer_sizes(const GridAutoencoderOptions& options) {
  std::vector<ImageSize> sizes = {options.images};
  for (size_t l = 0; l < options.layers.size(); ++l) {
    try {
      sizes.push_back(macro_layer_output(options.layers[l], sizes.back()));
    } catch (const ConfigError& error) {
      refuse_layer(l, error);
    }
  }
  return sizes;
}

int64_t inputs_of(const MacroLayerOptions& layer, const ImageSize& input) {
  return product_of({input.channels, layer.fields.size, layer.fields.size});
}

// The numbers in the W of a layer on `part` of its positions.
int64_t filter_numbers(const MacroLayerOptions& layer, const ImageSize& input, int64_t positions) {
  return product_of({positions, layer.maps, inputs_of(layer, input)});
}

// The output positions of a layer's filters that a rank holds.
int64_t positions_held(const MacroLayerOptions& layer, const ImageSize& input, const RankGrid& grid,
                       int rank) {
  return grid.part(rank, layer.fields.positions(input.height), layer.fields.positions(input.width)).area();
}

// The training of one rank.
class AutoencoderTraining {
 public:
  AutoencoderTraining(const GridAutoencoderOptions& options, const GridAutoencoderParts& parts)
      : options_(options),
        parts_(parts),
        grid_(parts.group, parts.grid),
        sizes_(layer_sizes(options)),
        checkpoint_(options, parts.group, parts.grid) {
    for (size_t l = 0; l < options.layers.size(); ++l)
      layers_.push_back(std::make_unique<MacroLayer>(grid_, options.layers[l], sizes_[l],
                                                     key_of(options.seed, l, 0), options.type));
  }

  GridAutoencoderResult run() {
    const Nanoseconds begin = parts_.clock.now();
    result_.resumed_from = checkpoint_.find();
    step_ = std::max<int64_t>(0, result_.resumed_from);
    begin_layer();
    if (result_.resumed_from >= 0) checkpoint_.read(state());
    const int64_t first = step_;
    sent_before_ = parts_.group.traffic().sent();
    while (step_ < end() && !result_.interrupted) advance();
    checkpoint_.save(step_, state());
    finish(first);
    result_.seconds = to_seconds(parts_.clock.now() - begin);
    if (parts_.on_end && !result_.interrupted) show_layers();
    return result_;
  }

 private:
  int64_t end() const { return options_.steps * std::ssize(options_.layers); }
  // The layer that learns next, or the last one at the end.
  size_t current() const {
    return static_cast<size_t>(std::min(step_ / options_.steps, std::ssize(options_.layers) - 1));
  }

  // Gives the layer that learns next momenta of zero.
  void begin_layer() {
    momenta_.clear();
    if (step_ >= end()) return;
    MacroLayer& layer = *layers_[current()];
    for (const at::Tensor& filters : {layer.encoder()->weight, layer.decoder()->weight})
      momenta_.push_back(at::zeros_like(filters, filters.options().requires_grad(false)));
  }

  void advance() {
    const size_t l = current();
    const int64_t in_layer = step_ % options_.steps + 1;
    at::Tensor x =
        parts_.images(step_, grid_.grid().part(grid_.rank(), options_.images.height, options_.images.width));
    x = x.to(options_.type);
    for (size_t below = 0; below < l; ++below) x = layers_[below]->features(x);
    const AutoencoderSums own = layers_[l]->learn(x, options_.sparsity);
    const bool stop = note(l, in_layer, own);
    update(*layers_[l]);
    ++step_;
    result_.interrupted = stop && step_ < end();
    if (in_layer == options_.steps) begin_layer();
    if (options_.checkpoint_every > 0 && step_ % options_.checkpoint_every == 0)
      checkpoint_.save(step_, state());
    if (parts_.on_step) parts_.on_step(last_);
  }

  // Adds up what the ranks know of a step. Returns whether some rank was asked to stop.
  bool note(size_t l, int64_t in_layer, const AutoencoderSums& own) {
    const double stop = parts_.stop != nullptr && parts_.stop->load() ? 1 : 0;
    std::array<double, 5> sums = {own.error, own.square, own.response, own.response_square, stop};
    all_reduce(parts_.group, sums.data(), sums.size(), DataType::kFp64, ReduceOp::kSum);
    const ImageSize& output = sizes_[l + 1];
    const auto samples = static_cast<double>(options_.batch);
    const double pools = samples * static_cast<double>(output.channels * output.height * output.width);
    last_ = {.layer = static_cast<int64_t>(l),
             .step = in_layer,
             .objective = (sums[0] + options_.sparsity * sums[2]) / samples,
             .error = sums[1] > 0 ? sums[0] / sums[1] : 0,
             .response = sums[2] / pools,
             .sparseness = sums[3] > 0 ? 1 - sums[2] * sums[2] / pools / sums[3] : 0};
    const bool fits = last_.error <= kDiverged;  // not if it is NaN
    if (fits && sums[1] > 0)
      penalty_share_ = std::max(in_layer == 1 ? 0 : penalty_share_, options_.sparsity * sums[2] / sums[1]);
    if (!fits || !std::isfinite(last_.objective))
      throw Error(
          ErrorCode::kNumeric,
          fmt::format(
              "layer {} diverges: at step {} its error is {:.3g} times the images' squares; decrease {}",
              l + 1, in_layer, last_.error,
              penalty_share_ > kDiverged ? "--sparsity, whose penalty is far larger" : "--lr"));
    if (result_.layers.empty() || result_.layers.back().layer != last_.layer) result_.layers.push_back(last_);
    result_.layers.back() = last_;
    return sums[4] > 0;
  }

  void update(MacroLayer& layer) {
    at::NoGradGuard no_grad;
    const std::array<at::Tensor, 2> filters = {layer.encoder()->weight, layer.decoder()->weight};
    for (size_t i = 0; i < filters.size(); ++i) {
      momenta_[i].mul_(options_.momentum).add_(filters[i].grad(), -options_.lr);
      filters[i].mutable_grad().reset();
      at::Tensor(filters[i]).add_(momenta_[i]);
    }
    normalize_filters(filters[0]);
  }

  // What a checkpoint holds.
  std::vector<GridTensor> state() const {
    std::vector<GridTensor> tensors;
    const auto add = [&](const std::string& name, const at::Tensor& tensor, size_t l) {
      const ImageWindows& fields = options_.layers[l].fields;
      tensors.push_back(
          {name, tensor, fields.positions(sizes_[l].height), fields.positions(sizes_[l].width)});
    };
    for (size_t l = 0; l < layers_.size(); ++l) {
      add(fmt::format("encoder-{}", l + 1), layers_[l]->encoder()->weight.detach(), l);
      add(fmt::format("decoder-{}", l + 1), layers_[l]->decoder()->weight.detach(), l);
    }
    if (momenta_.empty()) return tensors;
    add("encoder-momentum", momenta_[0], current());
    add("decoder-momentum", momenta_[1], current());
    return tensors;
  }

  void show_layers() {
    std::vector<MacroLayer*> layers;
    for (const auto& layer : layers_) layers.push_back(layer.get());
    parts_.on_end(layers);
  }

  // Sums up the traffic of all ranks.
  void finish(int64_t first) {
    const HaloTraffic& own = grid_.traffic();
    std::array<double, 3> sums = {static_cast<double>(own.sent_bytes), static_cast<double>(own.messages),
                                  static_cast<double>(parts_.group.traffic().sent() - sent_before_)};
    all_reduce(parts_.group, sums.data(), sums.size(), DataType::kFp64, ReduceOp::kSum);
    result_.halo_bytes = static_cast<uint64_t>(sums[0]);
    result_.halo_messages = static_cast<uint64_t>(sums[1]);
    result_.other_bytes = static_cast<uint64_t>(sums[2] - sums[0]);
    result_.halo_bytes_formula = grid_halo_bytes(options_, parts_.grid, first, step_);
    result_.steps = step_;
    for (size_t l = 0; l < layers_.size(); ++l) {
      const ImageWindows& fields = options_.layers[l].fields;
      const int64_t positions = fields.positions(sizes_[l].height) * fields.positions(sizes_[l].width);
      result_.parameters = sum_of(result_.parameters,
                                  product_of({2, filter_numbers(options_.layers[l], sizes_[l], positions)}));
    }
    for (int rank = 0; rank < parts_.grid.size(); ++rank) {
      int64_t held = 0;
      for (size_t l = 0; l < layers_.size(); ++l)
        held = sum_of(held, product_of({2, filter_numbers(options_.layers[l], sizes_[l],
                                                          positions_held(options_.layers[l], sizes_[l],
                                                                         parts_.grid, rank))}));
      result_.rank_parameters = std::max(result_.rank_parameters, held);
    }
  }

  const GridAutoencoderOptions& options_;
  const GridAutoencoderParts& parts_;
  GridGroup grid_;
  const std::vector<ImageSize> sizes_;
  AutoencoderCheckpoint checkpoint_;
  std::vector<std::unique_ptr<MacroLayer>> layers_;
  std::vector<at::Tensor> momenta_;  // of the W and V that learn; empty at the end
  int64_t step_ = 0;                 // of all layers
  uint64_t sent_before_ = 0;         // bytes that this rank had sent when the training began
  GridAutoencoderStep last_;
  double penalty_share_ = 0;  // the largest penalty of this layer, relative to x²
  GridAutoencoderResult result_;
};

}  // namespace

int64_t most_autoencoder_steps(const GridAutoencoderOptions& options) {
  return kMost / std::max<int64_t>(1, std::ssize(options.layers)) / std::max<int64_t>(1, options.batch) / 2;
}

void check_grid_autoencoder(const GridAutoencoderOptions& options, const RankGrid& grid) {
  if (options.layers.empty()) throw ConfigError("layers", "an autoencoder needs at least one layer");
  if (options.batch < 1 || options.steps < 1)
    throw ConfigError("--steps", fmt::format("{} samples and {} steps train nothing; use at least 1 of each",
                                             options.batch, options.steps));
  const int64_t most = most_autoencoder_steps(options);
  if (options.steps > most)
    throw ConfigError("--steps",
                      fmt::format("{} steps of {} samples for {} layers are more than can be counted; use at "
                                  "most {}",
                                  options.steps, options.batch, options.layers.size(), most));
  if (!(options.sparsity >= 0) || !std::isfinite(options.sparsity))
    throw ConfigError("--sparsity",
                      fmt::format("{} is no penalty; use 0 or a positive number", options.sparsity));
  if (!(options.momentum >= 0 && options.momentum < 1))
    throw ConfigError("--momentum", fmt::format("{} is not in [0, 1)", options.momentum));
  if (!(options.lr > 0) || !std::isfinite(options.lr))
    throw ConfigError("--lr", fmt::format("{} trains nothing; use a positive number", options.lr));
  const std::vector<ImageSize> sizes = layer_sizes(options);
  for (size_t l = 0; l < options.layers.size(); ++l) {
    const MacroLayerOptions& layer = options.layers[l];
    const ImageSize& input = sizes[l];
    const int64_t height = layer.fields.positions(input.height), width = layer.fields.positions(input.width);
    try {
      halo_plan(grid, 0, layer.fields, input.height, input.width);
      halo_plan(grid, 0, layer.pool, height, width);
    } catch (const ConfigError& error) {
      refuse_layer(l, error);
    }
  }
}

int64_t grid_state_numbers(const GridAutoencoderOptions& options, const RankGrid& grid, int rank) {
  const std::vector<ImageSize> sizes = layer_sizes(options);
  int64_t filters = 0, largest = 0;
  for (size_t l = 0; l < options.layers.size(); ++l) {
    const int64_t own =
        product_of({2, filter_numbers(options.layers[l], sizes[l],
                                      positions_held(options.layers[l], sizes[l], grid, rank))});
    filters = sum_of(filters, own);
    largest = std::max(largest, own);
  }
  return sum_of(filters, product_of({2, largest}));
}

int64_t grid_state_bytes(const GridAutoencoderOptions& options, const RankGrid& grid) {
  int64_t largest = 0;
  for (int rank = 0; rank < grid.size(); ++rank)
    largest = std::max(largest, grid_state_numbers(options, grid, rank));
  return product_of({largest, options.type == at::kDouble ? 8 : 4});
}

uint64_t grid_halo_bytes(const GridAutoencoderOptions& options, const RankGrid& grid, int64_t first,
                         int64_t last) {
  const std::vector<ImageSize> sizes = layer_sizes(options);
  const int64_t element = options.type == at::kDouble ? 8 : 4;
  int64_t below = 0, bytes = 0;  // below: of the features that a step of the layer needs
  for (int64_t l = 0; l < std::ssize(options.layers); ++l) {
    const int64_t steps = std::max<int64_t>(0, std::min(last, product_of({l + 1, options.steps})) -
                                                   std::max(first, product_of({l, options.steps})));
    const MacroLayerHalos halos = macro_layer_halos(grid, options.layers[static_cast<size_t>(l)],
                                                    sizes[static_cast<size_t>(l)], options.batch);
    bytes = sum_of(bytes, product_of({steps, element, sum_of(below, halos.learning)}));
    below = sum_of(below, halos.features);
  }
  if (bytes == kMost)
    throw ConfigError("--steps", "the ranks would send more bytes than can be counted; use fewer steps");
  return static_cast<uint64_t>(bytes);
}

GridAutoencoderResult train_grid_autoencoder(const GridAutoencoderOptions& options,
                                             const GridAutoencoderParts& parts) {
  check_grid_autoencoder(options, parts.grid);
  return AutoencoderTraining(options, parts).run();
}

}  // namespace starling
