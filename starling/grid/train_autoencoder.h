// Trains a network of macro layers (macro_layer.h) on a grid of ranks, one layer after another. Each layer
// learns from the features of the layers below it, which no longer change (Coates et al., Deep learning with
// COTS HPC systems, ICML 2013). The update is SGD with momentum; then the filters of W get norm 1:
//
//   v ← momentum · v − lr · gradient,   w ← w + v,   W ← W / |W| for each filter
//
// Each rank reads its part of the images and updates the filters of its own positions. Besides the halos, the
// ranks add up five numbers after each step.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "starling/base/clock.h"
#include "starling/comm/group.h"
#include "starling/grid/macro_layer.h"
#include "starling/grid/rank_grid.h"

namespace starling {

struct GridAutoencoderOptions {
  ImageSize images;                       // the size of an image
  std::vector<MacroLayerOptions> layers;  // at least one
  double sparsity = 0.1;                  // λ
  double lr = 0.01;
  double momentum = 0.9;
  int64_t batch = 64;   // samples of a step
  int64_t steps = 100;  // of each layer
  uint64_t seed = 0;
  at::ScalarType type = at::kFloat;  // or kDouble
  std::string data;                  // names the images; compared with that of a checkpoint
  std::string checkpoint;            // a folder; empty: no checkpoints
  int64_t checkpoint_every = 100;    // steps; 0: at the end only
};

// How well a layer does on a batch, before its update.
struct GridAutoencoderStep {
  int64_t layer = 0;     // from 0
  int64_t step = 0;      // of this layer, from 1
  double objective = 0;  // the mean over the samples
  double error = 0;      // |Vᵀ W x − x|² / |x|²
  double response = 0;   // the mean of the pools' outputs
  // 1 − (mean of the pools' outputs)² / (mean of their squares): 0 if all pools respond alike, and near 1 if
  // few pools respond (Rolls and Tovee, 1995).
  double sparseness = 0;
};

struct GridAutoencoderParts {
  Group& group;
  RankGrid grid;
  // Returns the pixels `part` of the batch of a step, [batch, channels, rows, columns] of any floating type.
  // The steps of all layers are counted from 0.
  std::function<at::Tensor(int64_t step, const PixelRect& part)> images;
  const Clock& clock;
  const std::atomic<bool>* stop = nullptr;  // asks the run to stop after a step; may be null
  std::function<void(const GridAutoencoderStep&)> on_step = {};  // on every rank; may be empty
  // Called after training with the rank's part of each layer, unless a signal interrupted it. It may compute
  // features, on all ranks. May be empty.
  std::function<void(const std::vector<MacroLayer*>&)> on_end = {};
};

// The result, equal on all ranks.
struct GridAutoencoderResult {
  std::vector<GridAutoencoderStep> layers;  // the last step of each layer that this run has trained
  bool interrupted = false;
  int64_t steps = 0;                // of all layers, also those before this run
  int64_t resumed_from = -1;        // the steps of the checkpoint; -1: none
  int64_t parameters = 0;           // numbers in W and V of all layers
  int64_t rank_parameters = 0;      // the most that a rank holds of them
  uint64_t halo_bytes = 0;          // that all ranks have sent as halos in this run
  uint64_t halo_bytes_formula = 0;  // that they must have sent
  uint64_t halo_messages = 0;
  uint64_t other_bytes = 0;  // that all ranks have sent besides, while they trained
  double seconds = 0;
};

// Trains the network. Collective. Errors: ConfigError for options that make no network; Error(kNumeric) if
// a layer diverges; those of JobCheckpoint and of the group.
GridAutoencoderResult train_grid_autoencoder(const GridAutoencoderOptions& options,
                                             const GridAutoencoderParts& parts);

// Checks the options without a group. Errors: ConfigError.
void check_grid_autoencoder(const GridAutoencoderOptions& options, const RankGrid& grid);

// Returns the numbers that a rank keeps while a layer learns: W, V, their gradients, and the momenta of the
// layer. It does not count activations. A number that is too large for int64_t counts as the largest one,
// here and below.
int64_t grid_state_numbers(const GridAutoencoderOptions& options, const RankGrid& grid, int rank);

// Returns the bytes of grid_state_numbers() of the rank that keeps most.
int64_t grid_state_bytes(const GridAutoencoderOptions& options, const RankGrid& grid);

// Returns the largest number of steps for the layers and the batch.
int64_t most_autoencoder_steps(const GridAutoencoderOptions& options);

// Returns the bytes that all ranks together send as halos in the steps first … last − 1. Errors: ConfigError
// if they are too many for int64_t.
uint64_t grid_halo_bytes(const GridAutoencoderOptions& options, const RankGrid& grid, int64_t first,
                         int64_t last);

}  // namespace starling
