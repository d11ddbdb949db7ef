#include "starling/parallel/replica/batch_parts.h"

#include <algorithm>
#include <cmath>

namespace starling {

std::vector<Batch> cut_batch(const Batch& batch, int64_t count) {
  const int64_t parts = std::max<int64_t>(1, std::min(count, batch.size()));
  std::vector<Batch> cut;
  cut.reserve(static_cast<size_t>(parts));
  for (int64_t i = 0; i < parts; ++i) {
    const int64_t begin = batch.size() * i / parts, end = batch.size() * (i + 1) / parts;
    cut.push_back(batch.part(begin, end - begin));
  }
  return cut;
}

PartSteps steps_by_slots(const Model& model, at::ScalarType type, bool channels_last,
                         const std::vector<GradientSlot::Installed>& slots, size_t parts) {
  PartSteps steps;
  steps.forward = [&model, type, channels_last](const Batch& part) {
    return batch_loss(model, part, type, channels_last);
  };
  steps.backward = [&slots, parts](const at::Tensor& loss, size_t index) {
    for (const auto& s : slots) s.slot->expect_more(index + 1 < parts);
    loss.backward();
  };
  steps.scale_gradients = [&slots](double factor) {
    const at::NoGradGuard no_grad;
    for (const auto& s : slots) s.slot->scale(factor);
  };
  return steps;
}

double batch_by_parts(const std::vector<Batch>& parts, const PartSteps& steps) {
  double samples = 0;
  for (const Batch& part : parts) samples += static_cast<double>(part.size());
  // The weight of the whole batch is known before the first part, unless the loss returns it.
  double value = 0, weight = 0, factor = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const bool last = i + 1 == parts.size();
    const BatchLoss loss = steps.forward(parts[i]);
    const double sum = loss.sum.item<double>();
    weight += loss.weight;
    if (!loss.weighted) {  // the sum is the mean of the part
      if (i == 0) factor = steps.factor({{}, samples, false});
      const double share = factor * loss.weight / samples;
      value += sum * share;
      if (last || !std::isfinite(sum)) steps.check(value);
      steps.backward(share == 1 ? loss.sum : loss.sum * share, i);
      continue;
    }
    value += sum;
    if (!last) {
      if (!std::isfinite(sum)) steps.check(value);
      steps.backward(loss.sum, i);
      continue;
    }
    factor = steps.factor({{}, weight, true});
    value *= factor;
    steps.check(value);
    if (i > 0) steps.scale_gradients(factor);
    steps.backward(loss.sum * factor, i);
  }
  return value;
}

}  // namespace starling
