#include "starling/spec/device_refusal.h"

#include "starling/spec/enum_words.h"
#include "starling/spec/mesh.h"

namespace starling {

std::optional<DeviceRefusal> device_refusal(const RunSpec& spec) {
  const MeshSpec mesh = parse_mesh(spec.train.mesh, spec.train.ranks);
  if (mesh.stage > 1)
    return DeviceRefusal{"train.mesh",
                         "the stages of a pipeline compute on the CPU: leave out the stage axis, or use "
                         "--device cpu"};
  if (mesh.tensor > 1)
    return DeviceRefusal{"train.mesh",
                         "the ranks of a tensor axis compute on the CPU: leave out the tensor axis, or use "
                         "--device cpu"};
  if (spec.train.hybrid != "none")
    return DeviceRefusal{
        "train.hybrid",
        "a hybrid computes its sharded layers on the CPU: leave out --hybrid, or use --device cpu"};
  if (spec.train.shard == Shard::kParameters)
    return DeviceRefusal{"train.shard",
                         "--shard parameters computes block by block on the CPU: use --shard gradients, or "
                         "--device cpu"};
  if (spec.train.threads_mode != ThreadsMode::kOp)
    return DeviceRefusal{"train.threads_mode",
                         "only the threads of a CPU divide a batch or the layers: use --threads-mode op, or "
                         "--device cpu"};
  if (spec.model.conv != ConvAlgorithm::kAuto)
    return DeviceRefusal{"model.conv",
                         "im2col convolution computes on the CPU: use --conv auto, or --device cpu"};
  if (spec.model.batch_norm == BatchNorm::kSync)
    return DeviceRefusal{"model.batch_norm",
                         "synchronized batch norm computes on the CPU: use --set model.batch_norm=local, or "
                         "--device cpu"};
  if (spec.train.tune)
    return DeviceRefusal{"train.tune", "--tune measures the CPU: leave it out, or use --device cpu"};
  return std::nullopt;
}

std::optional<DeviceRefusal> refused_device(const RunSpec& spec) {
  const DeviceKind kind = spec.train.device;
  if (kind == DeviceKind::kCpu || kind == DeviceKind::kAuto) return std::nullopt;
  std::optional<DeviceRefusal> refusal = device_refusal(spec);
  if (refusal) refusal->text = "train.device = \"" + to_string(kind) + "\": " + refusal->text;
  return refusal;
}

}  // namespace starling
