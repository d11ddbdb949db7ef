#include "starling/train/fit_options.h"

#include <torch/types.h>

#include <algorithm>
#include <limits>

#include "starling/base/error.h"

namespace starling {

double Mean::value() const {
  return weight == 0 ? std::numeric_limits<double>::quiet_NaN() : sum / weight;
}

Mean top1(const at::Tensor& output, const at::Tensor& target) {
  TORCH_CHECK(output.dim() == 2 && target.dim() == 1 && output.size(0) == target.size(0),
              "top1 compares an output [n, classes] with classes [n], but the output is ", output.sizes(),
              " and the target is ", target.sizes());
  return {output.argmax(1).eq(target).sum().item<double>(), static_cast<double>(target.size(0))};
}

FitOptions& FitOptions::add(Metric metric) {
  const bool known = std::any_of(metrics_.begin(), metrics_.end(),
                                 [&](const Metric& other) { return other.name == metric.name; });
  if (known)
    throw ConfigError("metric", "\"" + metric.name + "\" was added before; give each metric its own name");
  if (metric.name.empty() || metric.name == "loss")
    throw ConfigError("metric", "the name must not be empty or \"loss\"");
  metrics_.push_back(std::move(metric));
  return *this;
}

FitOptions& FitOptions::optimizer(OptimizerMaker make) {
  optimizer_ = std::move(make);
  return *this;
}

FitOptions& FitOptions::group(std::string pattern, GroupSettings settings) {
  groups_.push_back({std::move(pattern), settings});
  return *this;
}

FitOptions& FitOptions::schedule(std::function<double(int64_t)> factor) {
  schedule_ = std::move(factor);
  return *this;
}

FitOptions& FitOptions::accumulate(int64_t parts) {
  if (parts < 1) throw ConfigError("FitOptions::accumulate", "there must be at least one part");
  accumulate_ = parts;
  return *this;
}

FitOptions& FitOptions::clip_value(double limit) {
  if (!(limit > 0)) throw ConfigError("FitOptions::clip_value", "the limit must be above 0");
  clip_value_ = limit;
  return *this;
}

FitOptions& FitOptions::blocks(std::vector<std::string> patterns) {
  blocks_.patterns = std::move(patterns);
  return *this;
}

FitOptions& FitOptions::tensor_plan(TensorPlan plan) {
  tensor_plan_ = std::move(plan);
  return *this;
}

Mean FitOptions::mean_of(double mean, const at::Tensor& target) {
  const auto samples = static_cast<double>(target.dim() == 0 ? 1 : target.size(0));
  return {mean * samples, samples};
}

Mean FitOptions::mean_of(const at::Tensor& mean, const at::Tensor& target) {
  return mean_of(mean.item<double>(), target);
}

}  // namespace starling
