// Times of single layers, on the CPU and on a GPU where there is one: convolution by libtorch's own algorithm ("direct") and
// as im2col and a matrix product (nn/conv_im2col.h), and fully connected; forward and backward apart.
#pragma once

#include <string>
#include <vector>

namespace starling {

struct LayerTiming {
  std::string layer;      // what is computed: "conv 64>64 3x3 on 56x56, batch 4"
  std::string algorithm;  // direct im2col product
  std::string pass;       // forward backward
  std::string device;     // cpu cuda
  double gflop = 0;       // of one pass: 2 a product forward; backward twice that, for inputs and weights
  std::vector<double> seconds;  // one a round

  double minimum() const;
  double median() const;
  double maximum() const;
};

// In each round every layer, algorithm and pass has its turn once, so that what disturbs the machine disturbs all alike.
// At least one round, after one that is not counted; then until `seconds` have passed, at most 15. Uses the threads that
// are set (at::get_num_threads).
std::vector<LayerTiming> bench_layers(double seconds);

bool has_gpu();

// A table, or one JSON object a line; both say so where there is no GPU.
std::string to_text(const std::vector<LayerTiming>& timings);
std::string to_json(const std::vector<LayerTiming>& timings);

}  // namespace starling
