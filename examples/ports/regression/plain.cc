// Fits a polynomial of degree 4 until the loss is small, with libtorch alone. Each batch is new.
#include "../common.h"

// Returns the powers 1 to 4 of x [n].
at::Tensor powers_of(const at::Tensor& x) {
  return torch::stack({x, x.pow(2), x.pow(3), x.pow(4)}, 1);
}

int main() {
  torch::manual_seed(3);
  const at::Tensor truth = torch::randn({4, 1}) * 5, constant = torch::randn({1}) * 5;
  auto fc = std::make_shared<torch::nn::LinearImpl>(4, 1);
  torch::optim::SGD optimizer(fc->parameters(), 0.1);
  double value = 1;
  int64_t batches = 0;
  while (value > 1e-3 && batches < 2000) {
    const at::Tensor x = powers_of(torch::randn({32}).clamp(-1.5, 1.5));
    optimizer.zero_grad();
    at::Tensor loss = torch::smooth_l1_loss(fc->forward(x), x.matmul(truth) + constant);
    value = loss.item<double>();
    loss.backward();
    optimizer.step();
    ++batches;
  }
  std::printf("loss %.6f after %lld batches\n", value, static_cast<long long>(batches));
  ports::print_weights(*fc);
}
