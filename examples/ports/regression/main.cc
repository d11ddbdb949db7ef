// Fits a polynomial of degree 4 until the loss is small, on any number of ranks. Each batch is new.
#include "../common.h"
#include "starling/starling.h"

// Returns the powers 1 to 4 of x [n].
at::Tensor powers_of(const at::Tensor& x) {
  return torch::stack({x, x.pow(2), x.pow(3), x.pow(4)}, 1);
}

int main(int argc, char** argv) {
  starling::Run run = starling::init(argc, argv);
  torch::manual_seed(3);
  const at::Tensor truth = torch::randn({4, 1}) * 5, constant = torch::randn({1}) * 5;
  auto fc = run.replicate(std::make_shared<torch::nn::LinearImpl>(4, 1));
  torch::optim::SGD sgd(fc->parameters(), 0.1);
  starling::DistributedOptimizer optimizer(run, *fc, sgd);
  double value = 1;
  int64_t batches = 0;
  auto checkpoint = run.checkpoint();
  checkpoint.add(optimizer).add("value", value).add("batches", batches).resume();
  while (value > 1e-3 && batches < 2000) {
    const at::Tensor x = powers_of(torch::randn({32}).clamp(-1.5, 1.5));
    optimizer.zero_grad();
    at::Tensor loss = torch::smooth_l1_loss(fc->forward(x), x.matmul(truth) + constant);
    value = run.mean(loss.item<double>());
    loss.backward();
    optimizer.step();
    ++batches;
    checkpoint.step();
  }
  std::printf("loss %.6f after %lld batches\n", value, static_cast<long long>(batches));
  ports::print_weights(*fc);
}
