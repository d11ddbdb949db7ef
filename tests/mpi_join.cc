// A simulation over MPI that trains a network in between, for mpi_test. It begins MPI, computes a sum by MPI,
// joins Starling's job, trains, and computes by MPI again. It ends MPI itself.
//
//   mpi_join [KEY=VALUE …]    Under mpiexec. KEY=VALUE are settings of the configuration.
#include <mpi.h>
#include <torch/nn/modules/linear.h>

#include <cstdio>
#include <string>

#include "starling/starling.h"

namespace {

struct Net : torch::nn::Module {
  torch::nn::Linear line = register_module("line", torch::nn::Linear(2, 2));
  at::Tensor forward(const at::Tensor& x) { return line(x); }
};

// Returns the sum of 1, 2, … over the ranks of MPI.
int sum_of_ranks() {
  int rank = 0, sum = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  ++rank;
  MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  return sum;
}

void train(const starling::Settings& settings) {
  starling::Run run = starling::join(settings);
  const at::Tensor i = torch::arange(256, torch::kFloat);
  const at::Tensor x = torch::stack({(i * 0.37).sin(), (i * 0.11).cos()}, 1);
  const auto data = starling::tensor_source(x, (x.sum(1) > 0).to(torch::kLong));
  const auto trained = run.fit<Net>([] { return std::make_shared<Net>(); }, starling::cross_entropy, data);
  if (run.rank() == 0) std::printf("%d ranks, loss %.9f\n", run.world_size(), trained.result.train_loss);
}

}  // namespace

int main(int argc, char** argv) {
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  starling::Settings settings = {{"train.steps", 50}, {"train.global_batch", 32}, {"train.threads", 1}};
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const size_t equals = word.find('=');
    settings.set(word.substr(0, equals), word.substr(equals + 1));
  }
  const int before = sum_of_ranks();
  try {
    train(settings);
  } catch (const starling::Error& error) {
    std::fprintf(stderr, "mpi_join: %s\n", error.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  const int after = sum_of_ranks();
  if (before != after) std::printf("the sums are %d and %d\n", before, after);
  MPI_Finalize();
}
