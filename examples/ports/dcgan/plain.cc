// A GAN with two optimizers. plain.cc uses libtorch alone, and main.cc runs on any number of ranks.
#include "../common.h"

namespace nn = torch::nn;

// Makes pictures [n, 1, 28, 28] from noise [n, 16, 1, 1].
nn::Sequential make_generator() {
  return nn::Sequential(
      nn::ConvTranspose2d(nn::ConvTranspose2dOptions(16, 32, 7).bias(false)), nn::BatchNorm2d(32), nn::ReLU(),
      nn::ConvTranspose2d(nn::ConvTranspose2dOptions(32, 16, 4).stride(2).padding(1)), nn::ReLU(),
      nn::ConvTranspose2d(nn::ConvTranspose2dOptions(16, 1, 4).stride(2).padding(1)), nn::Tanh());
}

// Returns the probability that a picture is real and not made by the generator.
nn::Sequential make_discriminator() {
  return nn::Sequential(nn::Conv2d(nn::Conv2dOptions(1, 16, 4).stride(2).padding(1)),
                        nn::LeakyReLU(nn::LeakyReLUOptions().negative_slope(0.2)),
                        nn::Conv2d(nn::Conv2dOptions(16, 32, 4).stride(2).padding(1)), nn::BatchNorm2d(32),
                        nn::LeakyReLU(nn::LeakyReLUOptions().negative_slope(0.2)),
                        nn::Conv2d(nn::Conv2dOptions(32, 1, 7)), nn::Sigmoid());
}

int main() {
  torch::manual_seed(5);
  nn::Sequential generator = make_generator();
  nn::Sequential discriminator = make_discriminator();
  const auto options = torch::optim::AdamOptions(2e-4).betas({0.5, 0.5});
  torch::optim::Adam makes(generator->parameters(), options);
  torch::optim::Adam judges(discriminator->parameters(), options);
  auto [pictures, classes] = ports::bars(256);
  auto loader = torch::data::make_data_loader<torch::data::samplers::SequentialSampler>(
      ports::Tensors(pictures * 2 - 1, classes).map(torch::data::transforms::Stack<>()), 32);
  for (int64_t epoch = 0; epoch < 2; ++epoch) {
    for (auto& batch : *loader) {
      const int64_t n = batch.data.size(0);
      judges.zero_grad();
      at::Tensor real = discriminator->forward(batch.data).view(n);
      torch::binary_cross_entropy(real, torch::empty({n}).uniform_(0.8, 1.0)).backward();
      at::Tensor made = generator->forward(torch::randn({n, 16, 1, 1}));
      at::Tensor judged = discriminator->forward(made.detach()).view(n);
      torch::binary_cross_entropy(judged, torch::zeros({n})).backward();
      judges.step();

      makes.zero_grad();
      at::Tensor deceived = discriminator->forward(made).view(n);
      torch::binary_cross_entropy(deceived, torch::ones({n})).backward();
      makes.step();
    }
  }
  ports::print_weights(*generator);
  ports::print_weights(*discriminator);
}
