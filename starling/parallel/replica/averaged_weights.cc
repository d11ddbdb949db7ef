#include "starling/parallel/replica/averaged_weights.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <utility>
#include <vector>

#include "starling/optim/update_rule.h"
#include "starling/parallel/replica/tensor_state.h"

namespace starling {

std::map<std::string, at::Tensor> averaged_weights(const std::map<std::string, at::Tensor>& optimizer) {
  const at::NoGradGuard no_grad;
  const std::string one = std::string(kAverageState) + "/", of_rank = std::string(kAverageState) + "@";
  std::map<std::string, std::vector<at::Tensor>> all;
  for (const auto& [name, tensor] : optimizer) {
    if (name.starts_with(one) || name.starts_with(of_rank)) all[parameter_of_state(name)].push_back(tensor);
  }
  std::map<std::string, at::Tensor> result;
  for (const auto& [name, averages] : all) {
    at::Tensor mean = averages.front().clone(at::MemoryFormat::Contiguous);
    for (size_t r = 1; r < averages.size(); ++r)
      mean.add_(averages[r] - averages.front(), 1.0 / static_cast<double>(averages.size()));
    result[name] = mean;
  }
  return result;
}

StrategyState with_averaged_weights(StrategyState state) {
  for (auto& [name, average] : averaged_weights(state.optimizer)) state.parameters[name] = average;
  return state;
}

}  // namespace starling
