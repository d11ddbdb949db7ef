// Measures single layers on the CPU, and on a GPU if there is one. The layers are convolutions and fully
// connected layers. A convolution is computed by libtorch's own algorithm ("direct"), and as im2col and a
// matrix product (nn/layers/conv_im2col.h). Forward and backward are measured separately.
#pragma once

#include <string>
#include <vector>

namespace starling {

// The measurement of one pass of one layer.
struct LayerTiming {
  std::string layer;      // the computation: "conv 64>64 3x3 on 56x56, batch 4"
  std::string algorithm;  // "direct", "im2col" or "product"
  std::string pass;       // "forward" or "backward"
  std::string device;     // "cpu" or "cuda"
  // of one pass: 2 per product in forward, and twice that in backward, for inputs and weights
  double gflop = 0;
  std::vector<double> seconds;  // one per round

  // The minimum of `seconds`.
  double minimum() const;
  // The median of `seconds`.
  double median() const;
  // The maximum of `seconds`.
  double maximum() const;
};

// Measures all layers. Each round runs every layer, algorithm and pass once, so that disturbances of the
// machine affect all of them alike. After one round that does not count, rounds continue until `seconds` have
// passed: at least 1 round, at most 15. The measurement uses the current number of threads
// (at::get_num_threads).
std::vector<LayerTiming> bench_layers(double seconds);

// Returns true if torch finds a GPU.
bool has_gpu();

// Returns a table. It says so if there is no GPU.
std::string to_text(const std::vector<LayerTiming>& timings);
// Returns one JSON object per line. One line says so if there is no GPU. The last line is end_of_list().
std::string to_json(const std::vector<LayerTiming>& timings);

}  // namespace starling
