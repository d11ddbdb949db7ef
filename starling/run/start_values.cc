#include "starling/run/start_values.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <string_view>
#include <vector>

#include "starling/base/error.h"
#include "starling/nn/state.h"
#include "starling/parallel/replica/broadcast_tensor.h"

namespace starling {
namespace {

// Throws if the tensors of two ranks differ in more than their values. Collective.
void require_equal_tensors(const TensorMap& tensors, Group& group) {
  std::string text;
  for (const auto& [name, tensor] : tensors)
    text +=
        fmt::format("{} {} {};", name, c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ","));
  const uint64_t own = std::hash<std::string_view>()(text);
  std::vector<uint64_t> all(static_cast<size_t>(group.size()));
  all_gather(group, &own, all.data(), 1, DataType::kInt64);
  for (size_t r = 0; r < all.size(); ++r) {
    if (all[r] == all[0]) continue;
    throw ConfigError(
        "Run::fit",
        fmt::format("the factory makes another module on rank {} than on rank 0: its parameters or "
                    "buffers differ in a name, a shape or a type; make it the same on every rank",
                    r));
  }
}

}  // namespace

StartValues::StartValues(const ModelFactory& factory, uint64_t seed, Group& group) {
  if (group.size() == 1) return;
  const Model model = seeded_model(factory, seed);
  const at::NoGradGuard no_grad;
  values_ = state_of(*model.module);
  require_equal_tensors(values_, group);
  for (auto& [name, value] : values_) broadcast_tensor(group, value, 0);
  for (const auto& item : model.module->named_parameters()) {
    if (!item.value().requires_grad()) frozen_[item.key()] = values_.at(item.key());
  }
}

void StartValues::resume(const CheckpointState& checkpoint) {
  checkpoint_.emplace();
  for (const auto& [name, stored] : checkpoint.model) checkpoint_->emplace(name, stored.value);
  for (auto& [name, value] : frozen_) value = fitting(*checkpoint_, name, value);
}

ModelFactory StartValues::in_factory(ModelFactory factory) const {
  return [this, factory = std::move(factory)] {
    Model model = factory();
    install(model);
    return model;
  };
}

void StartValues::install(Model& model) const {
  const at::NoGradGuard no_grad;
  for (auto& [name, tensor] : state_of(*model.module)) {
    if (const auto value = values_.find(name); value != values_.end()) tensor.copy_(value->second);
  }
  for (auto& item : model.module->named_parameters()) {
    at::Tensor& parameter = item.value();
    if (parameter.requires_grad()) continue;
    // The type of these values may be finer than that of a fresh model.
    if (checkpoint_) {
      parameter.set_data(fitting(*checkpoint_, item.key(), parameter).clone());
    } else if (const auto kept = frozen_.find(item.key()); kept != frozen_.end()) {
      parameter.set_data(kept->second.clone());
    }
  }
}

void StartValues::take_frozen(const Replica& replica) {
  for (const auto& item : replica.model.module->named_parameters()) {
    if (item.value().requires_grad()) continue;
    const at::Tensor value = item.value().detach();
    const auto kept = frozen_.find(item.key());
    const bool slice = kept != frozen_.end() && kept->second.sizes() != value.sizes();
    if (!slice) frozen_[item.key()] = value;
  }
  values_.clear();
  checkpoint_.reset();
}

void StartValues::add_frozen(StrategyState& state) const {
  for (const auto& [name, value] : frozen_)
    state.parameters[name] = value.clone(at::MemoryFormat::Contiguous);
}

}  // namespace starling
