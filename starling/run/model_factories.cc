#include "starling/run/model_factories.h"

#include <torch/types.h>

#include "starling/nn/state.h"

namespace starling {

ModelHooks model_hooks(Group* group) {
  ModelHooks hooks;
  if (group == nullptr) return hooks;
  hooks.all_reduce_sum = [group](at::Tensor& sum) {
    const at::Tensor whole = sum.to(at::kCPU).contiguous();
    const DataType type = whole.scalar_type() == at::kDouble ? DataType::kFp64 : DataType::kFp32;
    all_reduce(*group, whole.data_ptr(), whole.numel(), type, ReduceOp::kSum);
    if (!whole.is_same(sum)) sum.copy_(whole);
  };
  return hooks;
}

void load_initial(torch::nn::Module& module, const RunSpec& spec) {
  if (spec.model.init.empty()) return;
  if (spec.train.precision == Precision::kFp64) {
    for (const auto& tensors : {module.parameters(), module.buffers()}) {
      for (const at::Tensor& tensor : tensors) {
        if (tensor.is_floating_point()) tensor.set_data(tensor.detach().to(at::kDouble));
      }
    }
  }
  load_model(module, spec.model.init);
}

SyncedModelFactory zoo_factory(const RunSpec& spec, const SourceInfo& data) {
  const ModelShape shape{data.input_shape, data.classes, data.text};
  // If the model does not fit the data, this call throws before any rank makes a model.
  zoo_model(spec.model, shape);
  return [spec, shape](const ModelHooks& hooks) -> ModelFactory {
    ModelFactory make = zoo_model(spec.model, shape, hooks);
    if (spec.model.init.empty()) return make;
    return [make, spec] {
      Model made = make();
      load_initial(*made.module, spec);
      return made;
    };
  };
}

}  // namespace starling
