#include "starling/nn/state.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "starling/base/error.h"
#include "starling/base/suggest.h"

namespace starling {
namespace {

constexpr std::string_view kPrefix = "transformer.";
// The token embeddings of the zoo's text models, and the output layer of those that do not tie it.
constexpr const char* kGptEmbedding = "transformer.wte.weight";
constexpr const char* kLlamaEmbedding = "model.embed_tokens.weight";
constexpr const char* kHead = "lm_head.weight";

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

// Returns the name of the module's token embedding. It is empty if the module is no text model of the zoo.
std::string embedding_of(const TensorMap& state) {
  for (const char* name : {kGptEmbedding, kLlamaEmbedding}) {
    if (state.count(name)) return name;
  }
  return "";
}

// Returns true for the buffers of files of `embedding`'s model that hold no weights: GPT-2's causal mask, and
// the frequencies of Llama's rotations.
bool is_constant(const std::string& embedding, const std::string& name) {
  if (embedding == kGptEmbedding)
    return ends_with(name, ".attn.bias") || ends_with(name, ".attn.masked_bias");
  return embedding == kLlamaEmbedding && ends_with(name, ".rotary_emb.inv_freq");
}

// Returns the module's name of the tensor that the file calls `name`. Returns nothing if the module has no
// such tensor.
std::optional<std::string> name_in_module(const TensorMap& state, const std::string& name) {
  if (state.count(name)) return name;
  std::string longer = std::string(kPrefix) + name;
  if (state.count(longer)) return longer;
  if (name.rfind(kPrefix, 0) == 0 && state.count(name.substr(kPrefix.size())))
    return name.substr(kPrefix.size());
  return std::nullopt;
}

std::string shape_of(const at::Tensor& t) {
  return fmt::format("[{}]", fmt::join(t.sizes(), ", "));
}

[[noreturn]] void differs(const std::string& from, const std::string& what) {
  throw DataError(
      fmt::format("{}: holds the weights of another model: {}; train and load with the same model.* settings",
                  from, what));
}

class Loading {
 public:
  Loading(const TensorMap& state, const TensorFile& file, bool strict, const std::string& from)
      : state_(state), file_(file), strict_(strict), from_(from), embedding_(embedding_of(state)) {}

  // Checks everything before anything changes.
  void match() {
    for (const auto& [name, tensor] : file_.tensors) match_one(name, tensor);
    if (strict_) {
      for (const auto& [name, tensor] : state_) {
        if (!sources_.count(name))
          differs(from_, fmt::format("it has no tensor \"{}\" {}{}", name, shape_of(tensor), reason(name)));
      }
    }
    if (sources_.empty() && !state_.empty()) differs(from_, "it shares no tensor name with the model");
    check_tied_head();
  }

  void copy() const {
    const at::NoGradGuard no_grad;
    for (const auto& [name, source] : sources_) {
      at::Tensor target = state_.at(name);
      target.copy_(source);
    }
  }

 private:
  void match_one(const std::string& name, const at::Tensor& tensor) {
    const std::optional<std::string> ours = name_in_module(state_, name);
    if (!ours) {
      const bool expected = is_constant(embedding_, name) || (!embedding_.empty() && name == kHead);
      if (strict_ && !expected)
        differs(from_, fmt::format("its tensor \"{}\" {} has no place in the model", name, shape_of(tensor)));
      return;
    }
    const at::Tensor& target = state_.at(*ours);
    if (target.sizes() != tensor.sizes()) {
      differs(from_, fmt::format("tensor \"{}\" is {} in the file and {} in the model", *ours,
                                 shape_of(tensor), shape_of(target)));
    }
    if (target.is_floating_point() != tensor.is_floating_point() &&
        !ends_with(*ours, "num_batches_tracked")) {
      differs(from_, fmt::format("tensor \"{}\" is {} in the file and {} in the model", *ours,
                                 c10::toString(tensor.scalar_type()), c10::toString(target.scalar_type())));
    }
    if (!sources_.emplace(*ours, tensor).second) {
      throw DataError(
          fmt::format("{}: tensor \"{}\" occurs twice, with and without \"{}\"", from_, *ours, kPrefix));
    }
  }

  void check_tied_head() const {
    const auto head = file_.tensors.find(kHead);
    if (embedding_.empty() || state_.count(kHead) || head == file_.tensors.end()) return;
    const auto embedding = sources_.find(embedding_);
    if (embedding != sources_.end() && !at::equal(head->second, embedding->second)) {
      differs(from_, fmt::format("its lm_head.weight is not the token embedding, which this {} uses as its "
                                 "output layer",
                                 embedding_ == kGptEmbedding ? "gpt" : "llama (model.tied = true)"));
    }
  }

  // Returns why the file may lack a tensor of the module.
  std::string reason(const std::string& name) const {
    if (name == kHead && embedding_ == kLlamaEmbedding && file_.tensors.count(kLlamaEmbedding))
      return ", so its output layer is the token embedding (model.tied = true)";
    std::vector<std::string> names;
    for (const auto& item : file_.tensors) names.push_back(item.first);
    const std::string found = nearest(name, names);
    return found.empty() || state_.count(found) ? ""
                                                : fmt::format(" (the nearest that it has is \"{}\")", found);
  }

  const TensorMap& state_;
  const TensorFile& file_;
  bool strict_;
  const std::string& from_;
  std::string embedding_;  // the name of the token embedding
  TensorMap sources_;      // by the module's names
};

}  // namespace

TensorMap state_of(const torch::nn::Module& module) {
  TensorMap state;
  for (const auto& item : module.named_parameters()) state.emplace(item.key(), item.value().detach());
  for (const auto& item : module.named_buffers()) {
    if (item.value().defined()) state.emplace(item.key(), item.value().detach());
  }
  return state;
}

void load_into(torch::nn::Module& module, const TensorFile& file, bool strict, const std::string& from) {
  const TensorMap state = state_of(module);
  Loading loading(state, file, strict, from);
  loading.match();
  loading.copy();
}

void load_model(torch::nn::Module& module, const std::string& path, bool strict) {
  load_into(module, read_weights(path), strict, path);
}

void save_model(const torch::nn::Module& module, const std::string& path) {
  write_weights(path, state_of(module));
}

}  // namespace starling
