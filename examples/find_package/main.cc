// A program outside Starling's tree. It trains a linear classifier of points on the two sides of a line, with
// the flags of `starling train`.
#include <torch/nn/modules/linear.h>

#include "starling/starling.h"

struct Net : torch::nn::Module {
  torch::nn::Linear line = register_module("line", torch::nn::Linear(2, 2));
  at::Tensor forward(const at::Tensor& x) { return line(x); }
};

std::shared_ptr<const starling::Source> points(int64_t n) {
  const at::Tensor x = torch::rand({n, 2}) * 2 - 1;
  return starling::tensor_source(x, (x.sum(1) > 0).to(torch::kLong));
}

int main(int argc, char** argv) {
  torch::manual_seed(1);
  starling::Run run = starling::init(argc, argv);
  run.fit(starling::model<Net>(), starling::cross_entropy, points(2048), points(512),
          starling::FitOptions().metric("accuracy", starling::top1));
}
