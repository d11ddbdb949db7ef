#include "starling/parallel/pipeline/part_module.h"

namespace starling {

PartModule::PartModule(std::shared_ptr<torch::nn::Module> whole) : whole_(std::move(whole)) {
  submodules_[""] = this;
}

std::pair<torch::nn::Module*, std::string> PartModule::place_of(const std::string& name) {
  std::string path;
  size_t begin = 0;
  for (size_t dot; (dot = name.find('.', begin)) != std::string::npos; begin = dot + 1) {
    torch::nn::Module* parent = submodules_.at(path);
    path = name.substr(0, dot);
    if (submodules_.count(path) > 0) continue;
    const std::string own = name.substr(begin, dot - begin);
    submodules_[path] = parent->register_module(own, std::make_shared<torch::nn::Module>(own)).get();
  }
  return {submodules_.at(path), name.substr(begin)};
}

void PartModule::put_parameter(const std::string& name, at::Tensor parameter) {
  const auto [module, own] = place_of(name);
  module->register_parameter(own, std::move(parameter), /*requires_grad=*/true);
}

void PartModule::put_buffer(const std::string& name, at::Tensor buffer) {
  const auto [module, own] = place_of(name);
  module->register_buffer(own, std::move(buffer));
}

void PartModule::train(bool on) {
  torch::nn::Module::train(on);
  whole_->train(on);
}

}  // namespace starling
