#include "starling/commands/bench_layers.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/cuda.h>
#include <torch/types.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>

#include "starling/c10d/cuda_library.h"
#include "starling/commands/end_of_list.h"
#include "starling/nn/layers/conv_im2col.h"

namespace starling {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr int kMostRounds = 15;

double seconds_since(SteadyClock::time_point start) {
  return std::chrono::duration<double>(SteadyClock::now() - start).count();
}

// One layer by one algorithm, and the positions of its two timings.
struct Bench {
  std::function<at::Tensor()> forward;
  std::vector<at::Tensor> leaves;  // tensors whose gradients backward computes
  size_t forward_timing = 0, backward_timing = 0;
};

// The layers on one device.
class Layers {
 public:
  Layers(at::Device device, std::vector<LayerTiming>& timings) : device_(device), timings_(timings) {
    conv(4, 64, 64, 3, 56);    // the second stage of a ResNet, the third of VGG
    conv(4, 256, 256, 3, 14);  // many channels, small maps
    conv(4, 3, 64, 7, 112);    // the first layer of a network: few channels, large maps
    linear(64, 4096, 4096);    // the second fully connected layer of AlexNet and VGG
    linear(1, 4096, 4096);     // one sample: a matrix times a vector
  }

  void round(bool counts) {
    for (const Bench& bench : benches_) {
      at::Tensor y;
      const double forward = seconds_of([&] { y = bench.forward(); });
      const at::Tensor dy = at::ones_like(y);
      const double backward = seconds_of([&] { torch::autograd::grad({y}, bench.leaves, {dy}); });
      if (!counts) continue;
      timings_[bench.forward_timing].seconds.push_back(forward);
      timings_[bench.backward_timing].seconds.push_back(backward);
    }
  }

 private:
  void conv(int64_t batch, int64_t in, int64_t out, int64_t kernel, int64_t pixels) {
    const int64_t pad = kernel / 2;
    const at::Tensor x = leaf({batch, in, pixels, pixels}), w = leaf({out, in, kernel, kernel}),
                     b = leaf({out});
    const std::string name =
        fmt::format("conv {}>{} {}x{} on {}x{}, batch {}", in, out, kernel, kernel, pixels, pixels, batch);
    const double gflop = 2e-9 * static_cast<double>(batch * out * pixels * pixels * in * kernel * kernel);
    add(name, "direct", gflop, {x, w, b}, [=] { return at::conv2d(x, w, b, 1, pad); });
    add(name, "im2col", gflop, {x, w, b}, [=] {
      return im2col_conv2d(x, w, b, {.stride = {1, 1}, .padding = {pad, pad}, .dilation = {1, 1}});
    });
  }

  void linear(int64_t batch, int64_t in, int64_t out) {
    const at::Tensor x = leaf({batch, in}), w = leaf({out, in}), b = leaf({out});
    add(fmt::format("fully connected {}>{}, batch {}", in, out, batch), "product",
        2e-9 * static_cast<double>(batch * in * out), {x, w, b}, [=] { return at::linear(x, w, b); });
  }

  void add(const std::string& layer, const std::string& algorithm, double gflop,
           std::vector<at::Tensor> leaves, std::function<at::Tensor()> forward) {
    const std::string device = device_.is_cuda() ? "cuda" : "cpu";
    benches_.push_back({std::move(forward), std::move(leaves), timings_.size(), timings_.size() + 1});
    timings_.push_back({layer, algorithm, "forward", device, gflop, {}});
    timings_.push_back({layer, algorithm, "backward", device, 2 * gflop, {}});
  }

  at::Tensor leaf(at::IntArrayRef shape) const {
    return torch::randn(shape, torch::dtype(torch::kFloat).device(device_)).requires_grad_();
  }

  double seconds_of(const std::function<void()>& work) const {
    if (device_.is_cuda()) torch::cuda::synchronize();
    const auto start = SteadyClock::now();
    work();
    if (device_.is_cuda()) torch::cuda::synchronize();
    return seconds_since(start);
  }

  at::Device device_;
  std::vector<LayerTiming>& timings_;
  std::vector<Bench> benches_;
};

nlohmann::ordered_json json_of(const LayerTiming& t) {
  return {{"event", "layer_timing"},
          {"layer", t.layer},
          {"algorithm", t.algorithm},
          {"pass", t.pass},
          {"device", t.device},
          {"threads", at::get_num_threads()},
          {"rounds", t.seconds.size()},
          {"min_ms", t.minimum() * 1e3},
          {"median_ms", t.median() * 1e3},
          {"max_ms", t.maximum() * 1e3},
          {"gflop_per_s", t.gflop / t.median()}};
}

}  // namespace

double LayerTiming::minimum() const {
  return *std::min_element(seconds.begin(), seconds.end());
}

double LayerTiming::maximum() const {
  return *std::max_element(seconds.begin(), seconds.end());
}

double LayerTiming::median() const {
  std::vector<double> sorted = seconds;
  const auto middle = sorted.begin() + static_cast<ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  return *middle;
}

bool has_gpu() {
  return torch::cuda::is_available();
}

std::vector<LayerTiming> bench_layers(double seconds) {
  load_cuda_library();  // before the first question for CUDA; without a GPU, only the CPU is measured
  torch::manual_seed(0);
  std::vector<LayerTiming> timings;
  std::vector<Layers> devices;
  devices.emplace_back(at::kCPU, timings);
  if (has_gpu()) devices.emplace_back(at::kCUDA, timings);
  for (Layers& layers : devices) layers.round(/*counts=*/false);
  const auto start = SteadyClock::now();
  for (int round = 0; round < kMostRounds && (round == 0 || seconds_since(start) < seconds); ++round) {
    for (Layers& layers : devices) layers.round(/*counts=*/true);
  }
  return timings;
}

std::string to_text(const std::vector<LayerTiming>& timings) {
  std::string out = fmt::format("{:<36} {:<8} {:<9} {:<5} {:>9} {:>9} {:>9} {:>9}\n", "layer", "by", "pass",
                                "on", "min ms", "median", "max", "GFLOP/s");
  for (const LayerTiming& t : timings) {
    out += fmt::format("{:<36} {:<8} {:<9} {:<5} {:>9.3f} {:>9.3f} {:>9.3f} {:>9.1f}\n", t.layer, t.algorithm,
                       t.pass, t.device, t.minimum() * 1e3, t.median() * 1e3, t.maximum() * 1e3,
                       t.gflop / t.median());
  }
  return out + fmt::format("{} rounds in turn, fp32, {} threads; GFLOP/s at the median.{}",
                           timings.front().seconds.size(), at::get_num_threads(),
                           has_gpu() ? "" : " No GPU: nothing was measured on one.");
}

std::string to_json(const std::vector<LayerTiming>& timings) {
  std::string lines;
  for (const LayerTiming& timing : timings) {
    if (!lines.empty()) lines += "\n";
    lines += json_of(timing).dump();
  }
  if (!has_gpu()) lines += "\n" + nlohmann::json{{"event", "note"}, {"message", "no GPU"}}.dump();
  return lines + "\n" + end_of_list(timings.size());
}

}  // namespace starling
