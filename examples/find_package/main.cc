// A program outside Starling's tree that uses an installed Starling and its libtorch.
#include <starling/base/suggest.h>
#include <starling/spec/run_spec.h>
#include <torch/nn/modules/linear.h>

#include <iostream>

int main() {
  starling::RunSpec spec;
  torch::nn::Linear layer(28 * 28, spec.model.widths.back());
  const auto output = layer->forward(torch::ones({2, 28 * 28}));
  std::cout << starling::nearest("lenet", {"lenet5", "resnet18"}) << ' ' << output.size(0) << 'x'
            << output.size(1) << '\n';
}
