// Processes that train a network for handwritten digits together: the program of plain.cc, where Starling
// starts the processes and averages their gradients.
#include "../common.h"
#include "starling/starling.h"

struct Net : torch::nn::Module {
  torch::nn::Conv2d conv1 = register_module("conv1", torch::nn::Conv2d(1, 10, 5));
  torch::nn::Conv2d conv2 = register_module("conv2", torch::nn::Conv2d(10, 20, 5));
  torch::nn::Linear fc1 = register_module("fc1", torch::nn::Linear(320, 50));
  torch::nn::Linear fc2 = register_module("fc2", torch::nn::Linear(50, 10));

  at::Tensor forward(at::Tensor x) {
    x = torch::relu(torch::max_pool2d(conv1->forward(x), 2));
    x = torch::relu(torch::max_pool2d(conv2->forward(x), 2));
    return torch::log_softmax(fc2->forward(torch::relu(fc1->forward(x.view({-1, 320})))), 1);
  }
};

int main(int argc, char** argv) {
  starling::Run run = starling::init(argc, argv, {{"data.order", "sequential"}});
  torch::manual_seed(0);
  auto net = run.replicate(std::make_shared<Net>());
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.5));
  starling::DistributedOptimizer optimizer(run, *net, sgd);
  auto [pictures, classes] = ports::bars(640);
  auto loader = run.loader(
      starling::dataset(ports::Tensors(pictures, classes).map(torch::data::transforms::Stack<>())), 64);
  auto checkpoint = run.checkpoint();
  checkpoint.add(optimizer).add("loader", loader).resume();
  while (loader.epoch() < 6) {
    for (auto& batch : loader) {
      optimizer.zero_grad();
      torch::nll_loss(net->forward(batch.data), batch.target).backward();
      optimizer.step();
      checkpoint.step();
    }
  }
  const at::Tensor right = net->forward(pictures).argmax(1).eq(classes);
  std::printf("accuracy %.3f\n", right.to(torch::kFloat).mean().item<double>());
  ports::print_weights(*net);
}
