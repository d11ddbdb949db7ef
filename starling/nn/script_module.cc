#include "starling/nn/script_module.h"

#include <fmt/format.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>

#include <exception>
#include <set>
#include <utility>

#include "starling/base/error.h"

namespace starling {
namespace {

// The first line of an error of libtorch. The others are a stack trace.
std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

torch::jit::Module read_script(const std::string& path) {
  try {
    return torch::jit::load(path, at::Device(at::kCPU));
  } catch (const std::exception& error) {
    throw DataError(fmt::format(
        "{}: this is not a file that torch.jit.save() wrote, or it cannot be read: {}; weights alone, which "
        "torch.save() writes, belong to --init",
        path, first_line(error)));
  }
}

// Registers the tensors of `script` in `module`, and its parts as parts of the same names.
class Registration {
 public:
  // Returns the number of parameters.
  int64_t add(torch::nn::Module& module, const torch::jit::Module& script) {
    int64_t parameters = 0;
    for (const auto& parameter : script.named_parameters(/*recurse=*/false)) {
      if (!is_new(parameter.value)) continue;
      module.register_parameter(parameter.name, parameter.value, parameter.value.requires_grad());
      ++parameters;
    }
    for (const auto& buffer : script.named_buffers(/*recurse=*/false)) {
      if (is_new(buffer.value)) module.register_buffer(buffer.name, buffer.value);
    }
    for (const auto& child : script.named_children()) {
      auto part = std::make_shared<torch::nn::Module>();
      parameters += add(*part, child.value);
      module.register_module(child.name, std::move(part));
    }
    return parameters;
  }

 private:
  bool is_new(const at::Tensor& tensor) {
    return tensor.defined() && seen_.insert(tensor.unsafeGetTensorImpl()).second;
  }

  std::set<const c10::TensorImpl*> seen_;
};

std::vector<at::Tensor> tensors_of_value(const c10::IValue& value) {
  if (value.isTensor()) return {value.toTensor()};
  if (value.isTensorList()) return value.toTensorVector();
  if (value.isTuple()) {
    std::vector<at::Tensor> all;
    bool tensors = true;
    for (const c10::IValue& one : value.toTupleRef().elements()) {
      tensors = tensors && one.isTensor();
      if (tensors) all.push_back(one.toTensor());
    }
    if (tensors) return all;
  }
  throw ConfigError(
      "model",
      fmt::format("forward() of the TorchScript module returns a {}; let it return a tensor, or a tuple "
                  "or list of tensors",
                  value.tagKind()));
}

}  // namespace

struct ScriptModule::Script {
  torch::jit::Module module;
};

ScriptModule::ScriptModule(const std::string& path)
    : script_(std::make_unique<Script>(Script{read_script(path)})) {
  adopt(path);
}

ScriptModule::ScriptModule(const torch::jit::Module& module)
    : script_(std::make_unique<Script>(Script{module})) {
  adopt("the TorchScript module");
}

ScriptModule::~ScriptModule() = default;

void ScriptModule::adopt(const std::string& from) {
  if (Registration().add(*this, script_->module) == 0) {
    throw DataError(
        fmt::format("{}: the module has no parameters that could be trained; torch.jit.freeze() makes them "
                    "constants, so save the module before it is frozen",
                    from));
  }
  train(true);
}

std::vector<at::Tensor> ScriptModule::forward(const std::vector<at::Tensor>& inputs) {
  std::vector<c10::IValue> arguments(inputs.begin(), inputs.end());
  return tensors_of_value(script_->module.forward(std::move(arguments)));
}

void ScriptModule::train(bool on) {
  torch::nn::Module::train(on);
  script_->module.train(on);
}

void ScriptModule::save_script(const std::string& path) const {
  try {
    script_->module.save(path);
  } catch (const std::exception& error) {
    throw DataError(fmt::format("{}: the module cannot be written: {}; free space or choose another path",
                                path, first_line(error)));
  }
}

}  // namespace starling
