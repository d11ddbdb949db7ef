#include "starling/grid/train_autoencoder.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>

#include "starling/base/error.h"
#include "starling/base/keyed_random.h"
#include "starling/grid/autoencoder_checkpoint.h"

namespace starling {
namespace {

constexpr double kDiverged = 1e3;  // an error that no useful training has, relative to x²

// Returns the input sizes of all layers, and the size of the last output.
std::vector<ImageSize> layer_sizes(const GridAutoencoderOptions& options) {
  std::vector<ImageSize> sizes = {options.images};
  for (const MacroLayerOptions& layer : options.layers)
    sizes.push_back(macro_layer_output(layer, sizes.back()));
  return sizes;
}

int64_t inputs_of(const MacroLayerOptions& layer, const ImageSize& input) {
  return input.channels * layer.fields.size * layer.fields.size;
}

// The numbers in the W of a layer on `part` of its positions.
int64_t filter_numbers(const MacroLayerOptions& layer, const ImageSize& input, int64_t positions) {
  return positions * layer.maps * inputs_of(layer, input);
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
    if (!std::isfinite(last_.objective) || last_.error > kDiverged)
      throw Error(ErrorCode::kNumeric,
                  fmt::format("layer {} diverges: at step {} its error is {:.3g} times the "
                              "images' squares; decrease --lr",
                              l + 1, in_layer, last_.error));
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
      result_.parameters += 2 * filter_numbers(options_.layers[l], sizes_[l], positions);
    }
    for (int rank = 0; rank < parts_.grid.size(); ++rank) {
      int64_t held = 0;
      for (size_t l = 0; l < layers_.size(); ++l)
        held += 2 * filter_numbers(options_.layers[l], sizes_[l],
                                   positions_held(options_.layers[l], sizes_[l], parts_.grid, rank));
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
  GridAutoencoderResult result_;
};

}  // namespace

void check_grid_autoencoder(const GridAutoencoderOptions& options, const RankGrid& grid) {
  if (options.layers.empty()) throw ConfigError("layers", "an autoencoder needs at least one layer");
  if (options.batch < 1 || options.steps < 1)
    throw ConfigError("--steps", fmt::format("{} samples and {} steps train nothing; use at least 1 of each",
                                             options.batch, options.steps));
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
    halo_plan(grid, 0, layer.fields, input.height, input.width);
    halo_plan(grid, 0, layer.pool, height, width);
  }
}

int64_t grid_state_numbers(const GridAutoencoderOptions& options, const RankGrid& grid, int rank) {
  const std::vector<ImageSize> sizes = layer_sizes(options);
  int64_t filters = 0, largest = 0;
  for (size_t l = 0; l < options.layers.size(); ++l) {
    const int64_t own =
        filter_numbers(options.layers[l], sizes[l], positions_held(options.layers[l], sizes[l], grid, rank));
    filters += 2 * own;
    largest = std::max(largest, 2 * own);
  }
  return filters + 2 * largest;
}

uint64_t grid_halo_bytes(const GridAutoencoderOptions& options, const RankGrid& grid, int64_t first,
                         int64_t last) {
  const std::vector<ImageSize> sizes = layer_sizes(options);
  const int64_t element = options.type == at::kDouble ? 8 : 4;
  int64_t below = 0, bytes = 0;  // below: of the features that a step of the layer needs
  for (int64_t l = 0; l < std::ssize(options.layers); ++l) {
    const int64_t steps =
        std::max<int64_t>(0, std::min(last, (l + 1) * options.steps) - std::max(first, l * options.steps));
    const MacroLayerHalos halos = macro_layer_halos(grid, options.layers[static_cast<size_t>(l)],
                                                    sizes[static_cast<size_t>(l)], options.batch);
    bytes += steps * element * (below + halos.learning);
    below += halos.features;
  }
  return static_cast<uint64_t>(bytes);
}

GridAutoencoderResult train_grid_autoencoder(const GridAutoencoderOptions& options,
                                             const GridAutoencoderParts& parts) {
  check_grid_autoencoder(options, parts.grid);
  return AutoencoderTraining(options, parts).run();
}

}  // namespace starling
