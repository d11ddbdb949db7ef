// Trains a new last layer on a network whose other layers are frozen, on any number of ranks. The layers that
// a real program would load from a file are drawn from a seed.
#include "../common.h"
#include "starling/starling.h"

struct Net : torch::nn::Module {
  torch::nn::Sequential trunk = register_module(
      "trunk",
      torch::nn::Sequential(torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 12, 5).stride(2)),
                            torch::nn::BatchNorm2d(12), torch::nn::ReLU(), torch::nn::AdaptiveAvgPool2d(6)));
  torch::nn::Linear head = register_module("head", torch::nn::Linear(12 * 6 * 6, 10));
  at::Tensor forward(const at::Tensor& x) { return head->forward(trunk->forward(x).flatten(1)); }
};

int main(int argc, char** argv) {
  starling::Run run = starling::init(argc, argv, {{"data.order", "sequential"}});
  torch::manual_seed(9);
  auto net = run.replicate(std::make_shared<Net>());
  for (at::Tensor& p : net->trunk->parameters()) p.set_requires_grad(false);
  net->trunk->eval();
  torch::optim::Adam adam(net->head->parameters(), 1e-2);
  starling::DistributedOptimizer optimizer(run, *net, adam);
  auto [pictures, classes] = ports::bars(320);
  auto loader = run.loader(
      starling::dataset(ports::Tensors(pictures, classes).map(torch::data::transforms::Stack<>())), 32);
  auto checkpoint = run.checkpoint();
  checkpoint.add(optimizer).add("loader", loader).resume();
  while (loader.epoch() < 3) {
    for (auto& batch : loader) {
      optimizer.zero_grad();
      torch::cross_entropy_loss(net->forward(batch.data), batch.target).backward();
      optimizer.step();
      checkpoint.step();
    }
  }
  const at::Tensor right = net->forward(pictures).argmax(1).eq(classes);
  std::printf("accuracy %.3f\n", right.to(torch::kFloat).mean().item<double>());
  ports::print_weights(*net);
}
