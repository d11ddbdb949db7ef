#include "starling/train/evaluate.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <numeric>

namespace starling {
namespace {

// Rank r's part of the samples: loss * samples, right answers, samples.
std::vector<double> sums_of(Replica& replica, const Source& source, int64_t batch, int rank, int ranks) {
  const at::ScalarType type = replica.parameters.front().tensor.scalar_type();
  const int64_t begin = source.size() * rank / ranks;
  const int64_t end = source.size() * (rank + 1) / ranks;
  std::vector<double> sums(3);
  for (int64_t at = begin; at < end; at += batch) {
    std::vector<int64_t> indices(std::min(batch, end - at));
    std::iota(indices.begin(), indices.end(), at);
    const Batch samples = source.read(indices, /*epoch=*/0);
    const at::Tensor output = replica.model.forward(input_of(samples, type, /*channels_last=*/false));
    const auto n = static_cast<double>(indices.size());
    sums[0] += replica.model.loss(output, samples.target).item<double>() * n;
    if (!source.info().text) sums[1] += output.argmax(1).eq(samples.target).sum().item<double>();
    sums[2] += n;
  }
  return sums;
}

}  // namespace

EvalDone evaluate(Replica& replica, const Source& source, int64_t batch, Tally& tally, int64_t step) {
  torch::NoGradGuard no_grad;
  replica.model.module->eval();
  auto all = tally.gather(fmt::format("evaluation {}", step),
                          sums_of(replica, source, batch, tally.rank(), tally.ranks()));
  std::vector<double> sums(3);
  for (int r = 0; r < tally.ranks(); ++r) {
    std::vector<double>& part = all[static_cast<size_t>(r)];
    if (part.empty() && tally.leads()) part = sums_of(replica, source, batch, r, tally.ranks());
    for (size_t i = 0; i < part.size(); ++i) sums[i] += part[i];
  }
  replica.model.module->train();
  EvalDone done;
  done.step = step;
  done.samples = static_cast<int64_t>(sums[2]);
  done.loss = sums[2] > 0 ? sums[0] / sums[2] : 0;
  done.accuracy = source.info().text || sums[2] == 0 ? -1 : sums[1] / sums[2];
  return done;
}

}  // namespace starling
