#include "starling/train/evaluate.h"

#include <torch/torch.h>

#include <algorithm>
#include <numeric>

namespace starling {

EvalDone evaluate(Replica& replica, const Source& source, int64_t batch, Group& group, int64_t step) {
  torch::NoGradGuard no_grad;
  replica.model.module->eval();
  const at::ScalarType type = replica.parameters.front().tensor.scalar_type();
  const int64_t begin = source.size() * group.rank() / group.size();
  const int64_t end = source.size() * (group.rank() + 1) / group.size();
  double sums[3] = {0, 0, 0};  // loss * samples, right answers, samples
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
  replica.model.module->train();
  if (group.size() > 1) group.all_reduce(sums, 3, DataType::kFp64, ReduceOp::kSum);
  EvalDone done;
  done.step = step;
  done.samples = static_cast<int64_t>(sums[2]);
  done.loss = sums[2] > 0 ? sums[0] / sums[2] : 0;
  done.accuracy = source.info().text || sums[2] == 0 ? -1 : sums[1] / sums[2];
  return done;
}

}  // namespace starling
