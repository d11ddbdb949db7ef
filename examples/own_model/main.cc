// A program of your own: a plain module, a loss and a data source. The code does not mention ranks. Run it
// with:
//   own_model --epochs 20            One process.
//   own_model --epochs 20 -n 2       Two processes, which the program starts itself.
//   torchrun --nproc-per-node 2 --no-python own_model --epochs 20
#include <torch/torch.h>

#include "starling/starling.h"

struct Spirals : torch::nn::Module {
  torch::nn::Linear first{nullptr}, second{nullptr}, third{nullptr};
  explicit Spirals(int64_t width) {
    first = register_module("first", torch::nn::Linear(2, width));
    second = register_module("second", torch::nn::Linear(width, width));
    third = register_module("third", torch::nn::Linear(width, 2));
  }
  at::Tensor forward(const at::Tensor& x) { return third(torch::relu(second(torch::relu(first(x))))); }
};

// Returns n points on two spirals. The label of a point is the number of its spiral.
std::shared_ptr<const starling::Source> spirals(int64_t n, uint64_t seed) {
  torch::manual_seed(seed);
  const at::Tensor which = torch::randint(0, 2, {n}, torch::kLong), t = torch::rand({n}) * 2.5 + 0.5;
  const at::Tensor angle = t * 3 + which * M_PI;
  const at::Tensor x = torch::stack({t * angle.cos(), t * angle.sin()}, 1) + 0.03 * torch::randn({n, 2});
  return starling::tensor_source(x, which);
}

int main(int argc, char** argv) {
  starling::Run run = starling::init(argc, argv);
  run.fit(starling::model<Spirals>(64), starling::cross_entropy, spirals(4096, 1), spirals(1024, 2),
          starling::FitOptions().metric("accuracy", starling::top1));
}
