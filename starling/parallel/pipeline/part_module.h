// PartModule: some parameters and buffers of a module, under their names in it, as a module of their own. It computes nothing.
#pragma once

#include <torch/nn/module.h>

#include <map>
#include <memory>
#include <string>
#include <utility>

namespace starling {

class PartModule final : public torch::nn::Module {
 public:
  explicit PartModule(std::shared_ptr<torch::nn::Module> whole);

  // name: dotted, "blocks.0.fc.weight". Parameters come out in the order in which they were put in, by submodule.
  void put_parameter(const std::string& name, at::Tensor parameter);
  void put_buffer(const std::string& name, at::Tensor buffer);
  // Of the whole module too.
  void train(bool on = true) override;

 private:
  // The submodule that a dotted name lies in, and the name's last part.
  std::pair<torch::nn::Module*, std::string> place_of(const std::string& name);

  std::shared_ptr<torch::nn::Module> whole_;
  std::map<std::string, torch::nn::Module*> submodules_;  // by dotted name
};

}  // namespace starling
