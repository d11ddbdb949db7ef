// ScriptModule makes a TorchScript module a model that can be trained: one that torch.jit.script() or
// torch.jit.trace() made in Python and torch.jit.save() wrote.
//
//   auto trained = run.fit<starling::ScriptModule>(
//       [] { return std::make_shared<starling::ScriptModule>("net.pt"); }, starling::cross_entropy, train);
//   trained.model->save_script("trained.pt");  // torch.jit.load() reads it
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <vector>

namespace torch::jit {
struct Module;
}

namespace starling {

// A TorchScript module as a torch::nn::Module. Its parameters and buffers are those of the TorchScript
// module, under the names of state_dict(). A tensor that the module has under several names is registered
// under the first of them. Starling does not look into the code of the module, so the module has no blocks
// for stages or for sharded parameters.
class ScriptModule : public torch::nn::Module {
 public:
  // Reads a file of torch.jit.save(). Errors: DataError that names the file if it cannot be read, or if it
  // has no parameters.
  explicit ScriptModule(const std::string& path);
  // Takes a module in memory, and shares its tensors. Errors: DataError if it has no parameters.
  explicit ScriptModule(const torch::jit::Module& module);
  ~ScriptModule() override;

  // Calls the module's forward() with one argument for each tensor. It returns the tensors of the result: a
  // tensor, or a tuple or list of tensors. Errors: ConfigError if the result is anything else.
  std::vector<at::Tensor> forward(const std::vector<at::Tensor>& inputs);
  // Puts the module and all of its parts into training or evaluation mode.
  void train(bool on = true) override;
  // Writes a file for torch.jit.load(). Errors: DataError that names the file.
  void save_script(const std::string& path) const;

 private:
  struct Script;
  void adopt(const std::string& from);

  std::unique_ptr<Script> script_;
};

}  // namespace starling
