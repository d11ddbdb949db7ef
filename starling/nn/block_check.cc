#include "starling/nn/block_check.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/SequenceNumber.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/types.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <unordered_set>
#include <utility>

#include "starling/base/error.h"
#include "starling/nn/blocks.h"

namespace starling {
namespace {

constexpr const char* kComposition = "FitOptions::blocks";
constexpr const char* kCompositionRemedy =
    "give the blocks in the order of forward(), and a block between whose modules forward() computes "
    "something else a function, FitOptions::block(\"NAME\", …)";

using ParameterNames = std::map<const c10::TensorImpl*, std::string>;

// An operation that autograd has recorded.
struct ModelOperation {
  uint64_t number = 0;               // in the order of the computation
  std::string name;                  // "Relu"
  std::set<std::string> parameters;  // that the operation reads
};

std::string text_of(const ModelOperation& operation) {
  if (operation.parameters.empty()) return operation.name;
  return fmt::format("{} of {}", operation.name, fmt::join(operation.parameters, ", "));
}

// "ReluBackward0" is the name of the gradient of Relu.
std::string without_backward(const std::string& name) {
  return name.substr(0, name.find("Backward"));
}

// Returns the operations that `outputs` were computed by, in their order.
std::vector<ModelOperation> operations_of(const Tensors& outputs, const ParameterNames& names) {
  std::vector<torch::autograd::Node*> open;
  std::unordered_set<torch::autograd::Node*> seen;
  const auto visit = [&](torch::autograd::Node* node) {
    if (node != nullptr && seen.insert(node).second) open.push_back(node);
  };
  for (const at::Tensor& output : outputs) visit(output.grad_fn().get());
  std::vector<ModelOperation> operations;
  while (!open.empty()) {
    torch::autograd::Node* const node = open.back();
    open.pop_back();
    ModelOperation operation{node->sequence_nr(), without_backward(node->name()), {}};
    for (const torch::autograd::Edge& edge : node->next_edges()) {
      if (const auto* leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(edge.function.get())) {
        const auto name = names.find(leaf->variable.unsafeGetTensorImpl());
        if (name != names.end()) operation.parameters.insert(name->second);
      } else {
        visit(edge.function.get());
      }
    }
    operations.push_back(std::move(operation));
  }
  std::sort(operations.begin(), operations.end(),
            [](const ModelOperation& a, const ModelOperation& b) { return a.number < b.number; });
  return operations;
}

// A model may change its inputs in place.
Tensors copies_of(const Tensors& tensors) {
  Tensors copies;
  copies.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) copies.push_back(tensor.clone());
  return copies;
}

Tensors forward_of(const Model& model, const Tensors& inputs) {
  try {
    return model.forward(inputs);
  } catch (c10::Error& error) {
    error.add_context("in the forward pass of the model");
    throw;
  }
}

// What the blocks compute.
struct Composition {
  Tensors outputs;
  std::vector<uint64_t> ends;  // by block: the number of the first operation after it
};

Composition composed(const Model& model, Tensors x) {
  Composition result;
  for (size_t b = 0; b < model.blocks.size(); ++b) {
    try {
      x = model.blocks[b].forward(x);
    } catch (const c10::Error& error) {
      throw ConfigError(kComposition, fmt::format("the block {} fails on {}: {}; {}", model.blocks[b].name,
                                                  b == 0 ? std::string("the inputs")
                                                         : fmt::format("what the block {} returns",
                                                                       model.blocks[b - 1].name),
                                                  error.what_without_backtrace(), kCompositionRemedy));
    }
    result.ends.push_back(at::sequence_number::peek());
  }
  result.outputs = std::move(x);
  return result;
}

size_t block_of(const ModelOperation& operation, const Composition& blocks) {
  const auto after = std::upper_bound(blocks.ends.begin(), blocks.ends.end(), operation.number);
  return std::min<size_t>(after - blocks.ends.begin(), blocks.ends.size() - 1);
}

// Returns where the operations of the two computations differ first. Empty if they are the same.
std::string first_difference(const Model& model, const std::vector<ModelOperation>& whole,
                             const std::vector<ModelOperation>& parts, const Composition& blocks) {
  const auto same = [](const ModelOperation& a, const ModelOperation& b) {
    return a.name == b.name && a.parameters == b.parameters;
  };
  const auto [own, other] = std::mismatch(whole.begin(), whole.end(), parts.begin(), parts.end(), same);
  if (own == whole.end() && other == parts.end()) return {};
  const std::string forward = own == whole.end() ? std::string("forward() computes nothing more")
                                                 : "forward() computes " + text_of(*own);
  const std::string before = own == whole.begin() ? "" : fmt::format(" after {}", text_of(*(own - 1)));
  if (other == parts.end()) return fmt::format(": {}{}, and the blocks end there", forward, before);
  return fmt::format(": {}{}, where the block {} computes {}", forward, before,
                     model.blocks[block_of(*other, blocks)].name, text_of(*other));
}

bool same_values(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  if (!a.is_floating_point() || a.numel() == 0) return at::equal(a, b);
  const double tolerance = a.scalar_type() == at::kDouble ? 1e-10 : 1e-5;
  const at::Tensor wide = a.to(at::kDouble);
  return at::allclose(b.to(at::kDouble), wide, tolerance, tolerance * wide.abs().max().item<double>(),
                      /*equal_nan=*/true);
}

// Returns what differs between the outputs. Empty if they are equal.
std::string difference(const Tensors& whole, const Tensors& parts) {
  if (whole.size() != parts.size())
    return fmt::format("forward() returns {} tensors, and the last block {}", whole.size(), parts.size());
  for (size_t i = 0; i < whole.size(); ++i) {
    const at::Tensor a = whole[i].detach(), b = parts[i].detach();
    if (same_values(a, b)) continue;
    if (a.sizes() != b.sizes()) {
      return fmt::format("forward() returns a tensor [{}], and the last block [{}]",
                         fmt::join(a.sizes(), ", "), fmt::join(b.sizes(), ", "));
    }
    const at::Tensor distance = (a.to(at::kDouble) - b.to(at::kDouble)).abs().flatten();
    const auto at = distance.argmax().item<int64_t>();
    return fmt::format("an element of the output is {} by forward() and {} by the blocks",
                       a.flatten()[at].item<double>(), b.flatten()[at].item<double>());
  }
  return {};
}

// Checks that blocks compute with their own parameters.
void check_owners(const Model& model, const std::vector<ModelOperation>& operations,
                  const Composition& blocks) {
  const std::vector<BlockTensors> tensors = tensors_of_blocks(model);
  for (const ModelOperation& operation : operations) {
    const size_t block = block_of(operation, blocks);
    const std::vector<std::string>& own = tensors[block].parameters;
    for (const std::string& name : operation.parameters) {
      if (std::find(own.begin(), own.end(), name) != own.end()) continue;
      throw ConfigError(kComposition,
                        fmt::format("the block {} computes with the parameter {}, which belongs to "
                                    "another block; a rank may hold only one of the two",
                                    model.blocks[block].name, name));
    }
  }
}

}  // namespace

void check_blocks(const Model& model, const Tensors& inputs) {
  const at::AutoGradMode recorded(true);
  ParameterNames names;
  for (const auto& p : model.module->named_parameters()) {
    names[p.value().unsafeGetTensorImpl()] = p.key();
    if (p.value().is_floating_point()) p.value().requires_grad_(true);  // a frozen one is recorded, too
  }
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const at::Tensor state = generator.get_state();
  const Tensors whole = forward_of(model, copies_of(inputs));
  generator.set_state(state);
  const Composition blocks = composed(model, copies_of(inputs));
  const std::vector<ModelOperation> operations = operations_of(blocks.outputs, names);
  if (const std::string differs = difference(whole, blocks.outputs); !differs.empty()) {
    throw ConfigError(kComposition,
                      fmt::format("the blocks together do not compute what forward() computes{} ({}); {}",
                                  first_difference(model, operations_of(whole, names), operations, blocks),
                                  differs, kCompositionRemedy));
  }
  check_owners(model, operations, blocks);
}

}  // namespace starling
