#include "starling/nn/module_blocks.h"

#include <c10/util/Type.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fnmatch.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <typeinfo>
#include <utility>

#include "starling/base/error.h"
#include "starling/nn/known_forward.h"

namespace starling {
namespace {

using ModulePointer = std::shared_ptr<torch::nn::Module>;

constexpr const char* kBlocks = "FitOptions::blocks";
constexpr const char* kBlock = "FitOptions::block";

// A submodule that a block consists of.
struct Part {
  std::string name;
  ModulePointer module;
};

bool matches(const std::string& pattern, const std::string& name) {
  return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

bool is_sequential(const torch::nn::Module& module) {
  return dynamic_cast<const torch::nn::SequentialImpl*>(&module) != nullptr;
}

bool is_container(const torch::nn::Module& module) {
  return is_sequential(module) || dynamic_cast<const torch::nn::ModuleListImpl*>(&module) != nullptr;
}

std::string class_of(const torch::nn::Module& module) {
  return c10::demangle(typeid(module).name());
}

// Returns true if one of the two modules contains the other, or if they are the same.
bool overlap(std::string_view a, std::string_view b) {
  if (a.size() > b.size()) std::swap(a, b);
  return b.starts_with(a) && (a.size() == b.size() || b[a.size()] == '.');
}

// Returns the names of the children as a program writes them in a list.
std::string quoted_children(const torch::nn::Module& module) {
  std::vector<std::string> names;
  for (const auto& child : module.named_children()) {
    const bool list = dynamic_cast<const torch::nn::ModuleListImpl*>(child.value().get()) != nullptr;
    names.push_back(fmt::format("\"{}{}\"", child.key(), list ? ".*" : ""));
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

std::vector<Part> children_of(const torch::nn::Module& module, const std::string& prefix) {
  std::vector<Part> parts;
  for (const auto& child : module.named_children()) parts.push_back({prefix + child.key(), child.value()});
  return parts;
}

// Returns the children of the module, with those of its only container in the place of the container.
std::vector<Part> found_parts(const torch::nn::Module& module) {
  if (is_sequential(module)) return children_of(module, "");
  std::vector<Part> parts;
  int containers = 0;
  for (Part& child : children_of(module, "")) {
    if (!is_container(*child.module)) {
      parts.push_back(std::move(child));
      continue;
    }
    ++containers;
    for (Part& inner : children_of(*child.module, child.name + ".")) parts.push_back(std::move(inner));
  }
  if (containers == 1) return parts;
  const std::string remedy =
      parts.empty() ? std::string("fill Model::blocks (starling/nn/blocks.h)")
                    : fmt::format(
                          "name the submodules in the order of forward(), FitOptions::blocks({{{}}}), "
                          "or fill Model::blocks (starling/nn/blocks.h)",
                          quoted_children(module));
  throw ConfigError("model.blocks",
                    fmt::format("stages and --shard parameters run the model block by block, and the module "
                                "has {} among its children, from which its blocks would follow: {}",
                                containers == 0 ? "no Sequential or ModuleList"
                                                : fmt::format("{} Sequentials or ModuleLists", containers),
                                remedy));
}

// Appends the submodules that match the pattern. A submodule of a match is a part of it.
void add_matches(const torch::nn::Module& module, const std::string& pattern, std::vector<Part>& parts) {
  const size_t before = parts.size();
  for (const auto& item : module.named_modules("", /*include_self=*/false)) {
    if (!matches(pattern, item.key())) continue;
    const auto same = [&](const Part& part) { return overlap(part.name, item.key()); };
    const auto own = parts.begin() + static_cast<std::ptrdiff_t>(before);
    if (const auto earlier = std::find_if(parts.begin(), own, same); earlier != own) {
      throw ConfigError(kBlocks,
                        fmt::format("\"{}\" matches the module {}, but an earlier pattern matches {}; "
                                    "each module belongs to one block",
                                    pattern, item.key(), earlier->name));
    }
    if (std::none_of(own, parts.end(), same)) parts.push_back({item.key(), item.value()});
  }
  if (parts.size() == before) {
    throw ConfigError(kBlocks, fmt::format("\"{}\" matches no submodule; the submodules are {}", pattern,
                                           quoted_children(module)));
  }
}

// Returns the handle through which a Sequential calls each of its children.
std::map<const torch::nn::Module*, torch::nn::AnyModule> callable_children(const ModulePointer& model) {
  std::map<const torch::nn::Module*, torch::nn::AnyModule> found;
  for (const ModulePointer& module : model->modules(/*include_self=*/true)) {
    const auto sequential = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(module);
    if (!sequential) continue;
    for (const torch::nn::AnyModule& child : *sequential) found.emplace(child.ptr().get(), child);
  }
  return found;
}

[[noreturn]] void refuse_result(const std::string& name, const char* returned) {
  throw ConfigError(kBlocks,
                    fmt::format("the block {} returns a {}; a block of a Sequential takes and returns "
                                "one tensor. Give it a function: FitOptions::block(\"{}\", …)",
                                name, c10::demangle(returned), name));
}

// The function of a child of a Sequential.
struct AnyFunction {
  std::string name;
  torch::nn::AnyModule module;
  Tensors operator()(const Tensors& x) {
    auto result = module.any_forward(x.at(0));
    if (auto* tensor = result.template try_get<at::Tensor>()) return {std::move(*tensor)};
    refuse_result(name, result.type_info().name());
  }
};

// Makes the functions of blocks. The program's functions come first.
class Functions {
 public:
  Functions(ModulePointer model, const BlockNames& names)
      : model_(std::move(model)), names_(names), callable_(callable_children(model_)) {}

  BlockFunction of(const Part& part) {
    for (size_t f = 0; f < names_.forwards.size(); ++f) {
      const BlockForward& given = names_.forwards[f];
      if (!matches(given.pattern, part.name)) continue;
      used_.insert(f);
      if (BlockFunction function = given.bind(part.module, model_)) return function;
      throw ConfigError(kBlock,
                        fmt::format("\"{}\" is given for another class: the block {} is a {}, and the "
                                    "model is a {}",
                                    given.pattern, part.name, class_of(*part.module), class_of(*model_)));
    }
    if (const auto any = callable_.find(part.module.get()); any != callable_.end())
      return AnyFunction{part.name, any->second};
    if (BlockFunction function = known_forward(part.module)) return function;
    refuse(part);
  }

  // Refuses functions of the program that are for no block.
  void require_used(const std::vector<Part>& parts) const {
    for (size_t f = 0; f < names_.forwards.size(); ++f) {
      if (used_.contains(f)) continue;
      std::vector<std::string> blocks;
      blocks.reserve(parts.size());
      for (const Part& part : parts) blocks.push_back(part.name);
      throw ConfigError(kBlock,
                        fmt::format("\"{}\" matches no block that has no function yet; the blocks are {}",
                                    names_.forwards[f].pattern, fmt::join(blocks, ", ")));
    }
  }

 private:
  [[noreturn]] static void refuse(const Part& part) {
    if (is_container(*part.module)) {
      throw ConfigError(kBlocks,
                        fmt::format("the block {} is a list of modules, which has no forward function; "
                                    "write \"{}.*\" for its modules",
                                    part.name, part.name));
    }
    throw ConfigError(
        kBlock,
        fmt::format("the block {} is a {}, whose forward function is not known. Name the class, "
                    "FitOptions::block<Class>(\"{}\"), or give a function, FitOptions::block(\"{}\", …)",
                    part.name, class_of(*part.module), part.name, part.name));
  }

  ModulePointer model_;
  const BlockNames& names_;
  std::map<const torch::nn::Module*, torch::nn::AnyModule> callable_;
  std::set<size_t> used_;
};

// Appends a part to a block.
void join(Block& block, const std::string& name, ModulePointer module, BlockFunction function) {
  block.name += ", " + name;
  block.modules.push_back(std::move(module));
  block.forward = [first = std::move(block.forward), second = std::move(function)](const Tensors& x) {
    return second(first(x));
  };
}

bool has_parameters(const std::vector<ModulePointer>& modules) {
  return std::any_of(modules.begin(), modules.end(),
                     [](const ModulePointer& module) { return !module->parameters().empty(); });
}

void require_all_parameters(const Model& model) {
  std::set<const c10::TensorImpl*> owned;
  for (const Block& block : model.blocks) {
    for (const ModulePointer& module : block.modules) {
      for (const at::Tensor& p : module->parameters()) owned.insert(p.unsafeGetTensorImpl());
    }
  }
  for (const auto& p : model.module->named_parameters()) {
    if (owned.contains(p.value().unsafeGetTensorImpl())) continue;
    throw ConfigError(kBlocks,
                      fmt::format("the parameter {} belongs to no block; name the submodule that has "
                                  "it, or register it in a submodule that is named",
                                  p.key()));
  }
}

}  // namespace

void find_blocks(Model& model, const BlockNames& names) {
  if (!model.blocks.empty()) {
    throw ConfigError(kBlocks,
                      "the factory fills Model::blocks, and the options name blocks, too; leave one out");
  }
  std::vector<Part> parts;
  for (const std::string& pattern : names.patterns) add_matches(*model.module, pattern, parts);
  if (names.patterns.empty()) parts = found_parts(*model.module);
  Functions functions(model.module, names);
  for (const Part& part : parts) {
    BlockFunction function = functions.of(part);
    const bool joins = !model.blocks.empty() &&
                       (part.module->parameters().empty() || !has_parameters(model.blocks.back().modules));
    if (joins) {
      join(model.blocks.back(), part.name, part.module, std::move(function));
    } else {
      model.blocks.push_back({part.name, {part.module}, std::move(function)});
    }
  }
  functions.require_used(parts);
  require_all_parameters(model);
}

}  // namespace starling
