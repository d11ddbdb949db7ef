// Trains a new last layer on a network whose other layers are frozen, with libtorch alone. The layers that a
// real program would load from a file are drawn from a seed.
#include "../common.h"

struct Net : torch::nn::Module {
  torch::nn::Sequential trunk = register_module(
      "trunk",
      torch::nn::Sequential(torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 12, 5).stride(2)),
                            torch::nn::BatchNorm2d(12), torch::nn::ReLU(), torch::nn::AdaptiveAvgPool2d(6)));
  torch::nn::Linear head = register_module("head", torch::nn::Linear(12 * 6 * 6, 10));
  at::Tensor forward(const at::Tensor& x) { return head->forward(trunk->forward(x).flatten(1)); }
};

int main() {
  torch::manual_seed(9);
  auto net = std::make_shared<Net>();
  for (at::Tensor& p : net->trunk->parameters()) p.set_requires_grad(false);
  net->trunk->eval();
  torch::optim::Adam optimizer(net->head->parameters(), 1e-2);
  auto [pictures, classes] = ports::bars(320);
  auto loader = torch::data::make_data_loader<torch::data::samplers::SequentialSampler>(
      ports::Tensors(pictures, classes).map(torch::data::transforms::Stack<>()), 32);
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    for (auto& batch : *loader) {
      optimizer.zero_grad();
      torch::cross_entropy_loss(net->forward(batch.data), batch.target).backward();
      optimizer.step();
    }
  }
  const at::Tensor right = net->forward(pictures).argmax(1).eq(classes);
  std::printf("accuracy %.3f\n", right.to(torch::kFloat).mean().item<double>());
  ports::print_weights(*net);
}
