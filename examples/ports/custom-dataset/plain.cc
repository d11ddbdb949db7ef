// A data set of the program's own, which computes each picture when it is asked for, with libtorch alone.
#include "../common.h"

// Pictures [3, 16, 16] of a disc. The class is the quarter in which the disc lies.
struct Discs : torch::data::datasets::Dataset<Discs> {
  explicit Discs(int64_t count) : count_(count) {}
  torch::data::Example<> get(size_t index) override {
    const auto i = static_cast<int64_t>(index);
    const int64_t quarter = i % 4;
    const int64_t left = 4 + 8 * (quarter % 2), top = 4 + 8 * (quarter / 2);
    const double x = left + std::sin(i * 1.7), y = top + std::sin(i * 2.9);
    const at::Tensor row = torch::arange(16).view({16, 1}), column = torch::arange(16).view({1, 16});
    const at::Tensor disc = (row - y).pow(2) + (column - x).pow(2) < 9;
    return {disc.to(torch::kFloat).expand({3, 16, 16}).contiguous(), torch::tensor(quarter)};
  }
  torch::optional<size_t> size() const override { return static_cast<size_t>(count_); }

 private:
  int64_t count_;
};

int main() {
  torch::manual_seed(7);
  torch::nn::Sequential net(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 3).stride(2)), torch::nn::ReLU(),
                            torch::nn::Flatten(), torch::nn::Linear(8 * 7 * 7, 4));
  torch::optim::Adam optimizer(net->parameters(), 1e-2);
  double total = 0;
  auto loader = torch::data::make_data_loader<torch::data::samplers::SequentialSampler>(
      Discs(200).map(torch::data::transforms::Stack<>()), 32);
  for (int64_t epoch = 0; epoch < 4; ++epoch) {
    total = 0;
    for (auto& batch : *loader) {
      optimizer.zero_grad();
      at::Tensor loss = torch::cross_entropy_loss(net->forward(batch.data), batch.target);
      loss.backward();
      optimizer.step();
      total += loss.item<double>();
    }
  }
  std::printf("sum of the losses of the last epoch %.6f\n", total);
  ports::print_weights(*net);
}
