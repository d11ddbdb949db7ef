// What the ports share, with libtorch alone: generated pictures, and a function that prints the norms of
// weights, so that two sets of weights can be compared.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <cstdio>
#include <utility>

namespace ports {

// Returns n pictures [n, 1, 28, 28] with a bright bar, and the place of the bar as a class from 0 to 9.
inline std::pair<at::Tensor, at::Tensor> bars(int64_t n) {
  const at::Tensor which = torch::arange(n) % 10;
  const at::Tensor column = torch::arange(28).view({1, 1, 28});
  const at::Tensor bright =
      (column >= (2 * which).view({n, 1, 1})) * (column < (2 * which + 4).view({n, 1, 1}));
  const at::Tensor noise =
      torch::sin(torch::arange(n * 28 * 28).to(torch::kFloat) * 12.9898).view({n, 28, 28});
  return {(bright.to(torch::kFloat) + 0.3 * noise).unsqueeze(1), which};
}

// A data set of torch::data over two tensors.
struct Tensors : torch::data::Dataset<Tensors> {
  Tensors(at::Tensor all_data, at::Tensor all_targets)
      : data(std::move(all_data)), target(std::move(all_targets)) {}
  torch::data::Example<> get(size_t i) override {
    return {data[static_cast<int64_t>(i)], target[static_cast<int64_t>(i)]};
  }
  torch::optional<size_t> size() const override { return static_cast<size_t>(data.size(0)); }
  at::Tensor data, target;
};

// Prints the norm of each parameter.
inline void print_weights(const torch::nn::Module& module) {
  std::printf("weights");
  for (const at::Tensor& p : module.parameters()) std::printf(" %.9g", p.detach().norm().item<double>());
  std::printf("\n");
}

}  // namespace ports
