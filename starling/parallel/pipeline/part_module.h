// PartModule holds some parameters and buffers of a module, under their names in that module, as a module of
// its own. It computes nothing.
#pragma once

#include <torch/nn/module.h>

#include <map>
#include <memory>
#include <string>
#include <utility>

namespace starling {

// A module that shares tensors with a part of another module.
class PartModule final : public torch::nn::Module {
 public:
  // Makes an empty part of `whole`.
  explicit PartModule(std::shared_ptr<torch::nn::Module> whole);

  // Adds a parameter. name: dotted, such as "blocks.0.fc.weight". Within a submodule, parameters keep the
  // order in which they were added.
  void put_parameter(const std::string& name, at::Tensor parameter);
  // Adds a buffer under its dotted name.
  void put_buffer(const std::string& name, at::Tensor buffer);
  // Also sets the mode of the whole module.
  void train(bool on = true) override;

 private:
  // Returns the submodule that contains a dotted name, and the last part of the name.
  std::pair<torch::nn::Module*, std::string> place_of(const std::string& name);

  std::shared_ptr<torch::nn::Module> whole_;
  std::map<std::string, torch::nn::Module*> submodules_;  // by dotted name
};

}  // namespace starling
