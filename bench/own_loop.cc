// Measures what a program's own loop costs (run/loop/distributed_optimizer.h).
//
//   own_loop_bench
//       One rank: a bare libtorch loop against the same loop with DistributedOptimizer.
//
//   own_loop_bench -n 2 -- WIDTH
//       Several ranks: the own loop against Run::fit() with the same optimizer.
//
// Both sides alternate in each process. For each side the program prints the minimum, the median and the
// maximum of the time of a step over the rounds. It prints the same three values of the difference (one rank)
// or the ratio (several ranks) of both sides in a round. The default of WIDTH is 4096.
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "starling/starling.h"

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRounds = 15;

struct Net : torch::nn::Module {
  explicit Net(int64_t width) {
    first = register_module("first", torch::nn::Linear(16, width));
    second = register_module("second", torch::nn::Linear(width, 4));
  }
  at::Tensor forward(const at::Tensor& x) { return second(torch::relu(first(x))); }
  torch::nn::Linear first{nullptr}, second{nullptr};
};

void print(const char* what, std::vector<double> values) {
  std::sort(values.begin(), values.end());
  std::printf("%-28s min %9.3f  median %9.3f  max %9.3f\n", what, values.front(), values[values.size() / 2],
              values.back());
}

double microseconds_of(int64_t steps, const std::function<void()>& loop) {
  const auto start = Clock::now();
  loop();
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count() / static_cast<double>(steps);
}

// One rank: the bare loop against the own loop, on the same batch.
void against_libtorch(starling::Run& run) {
  constexpr int64_t kSteps = 2000;
  const at::Tensor x = torch::randn({32, 16}), y = torch::randint(0, 4, {32}, torch::kLong);
  auto bare = std::make_shared<Net>(48), ours = run.replicate(std::make_shared<Net>(48));
  torch::optim::SGD sgd(bare->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
  torch::optim::SGD inner(ours->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
  starling::DistributedOptimizer optimizer(run, *ours, inner);
  std::vector<double> bare_us, ours_us, more_us;
  for (int round = 0; round < kRounds; ++round) {
    bare_us.push_back(microseconds_of(kSteps, [&] {
      for (int64_t i = 0; i < kSteps; ++i) {
        sgd.zero_grad();
        torch::cross_entropy_loss(bare->forward(x), y).backward();
        sgd.step();
      }
    }));
    ours_us.push_back(microseconds_of(kSteps, [&] {
      for (int64_t i = 0; i < kSteps; ++i) {
        optimizer.zero_grad();
        torch::cross_entropy_loss(ours->forward(x), y).backward();
        optimizer.step();
      }
    }));
    more_us.push_back(ours_us.back() - bare_us.back());
  }
  print("bare libtorch, µs a step", bare_us);
  print("own loop, µs a step", ours_us);
  print("difference, µs a step", more_us);
}

// Several ranks: the own loop against Run::fit(), with an epoch of each in a round.
void against_fit(starling::Run& run, int64_t width) {
  constexpr int64_t kSteps = 100;
  const int64_t batch = run.spec().train.global_batch;
  const auto source = starling::tensor_source(torch::randn({batch * kSteps, 16}),
                                              torch::randint(0, 4, {batch * kSteps}, torch::kLong));
  const auto make = [](std::vector<at::Tensor> parameters) {
    return std::make_unique<torch::optim::SGD>(std::move(parameters),
                                               torch::optim::SGDOptions(0.01).momentum(0.9));
  };
  auto net = run.replicate(std::make_shared<Net>(width));
  auto inner = make(net->parameters());
  starling::DistributedOptimizer optimizer(run, *net, *inner);
  auto loader = run.loader(source, batch);
  std::vector<double> own, fitted, ratio;
  for (int round = 0; round < kRounds; ++round) {
    own.push_back(microseconds_of(kSteps, [&] {
      for (auto& b : loader) {
        optimizer.zero_grad();
        torch::cross_entropy_loss(net->forward(b.data), b.target).backward();
        optimizer.step();
      }
    }));
    const auto result = run.fit([&] { return starling::model<Net>(width)(); }, starling::cross_entropy,
                                source, nullptr, starling::FitOptions().optimizer(make));
    fitted.push_back(1e6 * static_cast<double>(batch) / run.mean(result.samples_per_s));
    ratio.push_back(own.back() / fitted.back());
  }
  if (run.rank() != 0) return;
  print("own loop, µs a step", own);
  print("fit, µs a step", fitted);
  print("own loop / fit", ratio);
}

}  // namespace

int main(int argc, char** argv) {
  starling::Run run = starling::init(argc, argv, {{"train.threads", 1}, {"train.gemm", "mkl"}});
  torch::manual_seed(1);
  if (run.world_size() == 1) {
    against_libtorch(run);
  } else {
    against_fit(run, run.arguments().empty() ? 4096 : std::stoll(run.arguments().front()));
  }
}
