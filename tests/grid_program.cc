// A user's program for tests/autoencoder_test.py. It trains a locally connected network that removes noise
// from images, on a grid of ranks. Arguments after "--": the grid. It prints the loss of the last update, of
// all ranks together, and the bytes of halos that rank 0 has sent.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstdio>
#include <string>

#include "starling/run/loop/ranks_in_grid.h"
#include "starling/starling.h"

namespace {

constexpr int64_t kSide = 20, kSamples = 6, kUpdates = 30;

// The part of an image that a rank holds.
at::Tensor own_part(const at::Tensor& image, const starling::GridGroup& grid, int rank) {
  const starling::PixelRect part = grid.grid().part(rank, kSide, kSide);
  return image.narrow(2, part.rows.begin, part.rows.count())
      .narrow(3, part.columns.begin, part.columns.count());
}

}  // namespace

int main(int argc, char** argv) {
  starling::Run run = starling::init(argc, argv);
  const auto grid = starling::ranks_in_grid(run, run.arguments().empty() ? "" : run.arguments()[0]);
  starling::LocallyConnectedOptions options{
      .channels = 1, .height = kSide, .width = kSide, .maps = 4, .windows = {5, 1, 2}, .seed = 1};
  starling::GridLocallyConnected2d first(*grid, options, at::kDouble);
  options.channels = 4, options.maps = 1, options.seed = 2;
  starling::GridLocallyConnected2d second(*grid, options, at::kDouble);
  double loss = 0;
  for (int64_t update = 0; update < kUpdates; ++update) {
    at::manual_seed(static_cast<uint64_t>(update % 3));  // every rank makes equal images
    const at::Tensor clean = at::randn({kSamples, 1, 1, kSide}, at::kDouble).expand({-1, -1, kSide, -1});
    const at::Tensor noisy = clean + 0.5 * at::randn({kSamples, 1, kSide, kSide}, at::kDouble);
    const at::Tensor y = second->forward(at::tanh(first->forward(own_part(noisy, *grid, grid->rank()))));
    const at::Tensor own = (y - own_part(clean, *grid, grid->rank())).square().sum() / kSamples;
    own.backward();
    loss = run.mean(own.item<double>()) * run.world_size();
    at::NoGradGuard no_grad;
    for (const at::Tensor& parameter : {first->weight, first->bias, second->weight, second->bias}) {
      parameter.add_(parameter.grad(), -0.01);
      parameter.mutable_grad().reset();
    }
  }
  if (run.rank() == 0)
    std::printf("loss %.17g halo bytes %llu\n", loss,
                static_cast<unsigned long long>(grid->traffic().sent_bytes));
}
