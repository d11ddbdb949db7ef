#include "starling/run/ranks/broadcast_state.h"

#include <torch/types.h>
#include <torch/utils.h>

#include <nlohmann/json.hpp>

#include "starling/parallel/replica/broadcast_tensor.h"
#include "starling/run/ranks/broadcast_text.h"

namespace starling {

void broadcast_state(Group& group, int source, StrategyState& state) {
  if (group.size() == 1) return;
  at::NoGradGuard no_grad;
  for (auto* tensors : {&state.parameters, &state.buffers, &state.optimizer}) {
    for (auto& [name, tensor] : *tensors) {
      broadcast_tensor(group, tensor, source);
    }
  }
}

void broadcast_tensors(Group& group, TensorMap& tensors) {
  if (group.size() == 1) return;
  nlohmann::json shapes = nlohmann::json::array();
  for (const auto& [name, tensor] : tensors)
    shapes.push_back({name, static_cast<int>(tensor.scalar_type()), tensor.sizes().vec()});
  shapes = nlohmann::json::parse(broadcast_text(group, shapes.dump()));
  if (group.rank() != 0) tensors.clear();
  at::NoGradGuard no_grad;
  for (const auto& shape : shapes) {
    const auto name = shape[0].get<std::string>();
    if (group.rank() != 0)
      tensors[name] =
          at::empty(shape[2].get<std::vector<int64_t>>(), static_cast<at::ScalarType>(shape[1].get<int>()));
    broadcast_tensor(group, tensors.at(name), 0);
  }
}

}  // namespace starling
