#include "starling/run/hybrid_choice.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace starling {
namespace {

std::vector<std::string> names_between_commas(const std::string& text) {
  std::vector<std::string> names;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t comma = std::min(text.find(',', begin), text.size());
    names.push_back(text.substr(begin, comma - begin));
    begin = comma + 1;
  }
  return names;
}

}  // namespace

HybridChoice choose_hybrid(const RunSpec& spec, const ModelFactory& factory, const SourceInfo& data) {
  HybridChoice choice;
  if (spec.train.hybrid != "auto") {
    choice.layers = names_between_commas(spec.train.hybrid);
    choice.why = fmt::format("model-parallel, as asked for: {}", fmt::join(choice.layers, " "));
    return choice;
  }
  const ModelShape shape{data.input_shape, data.classes, data.text};
  std::vector<std::string> told;
  for (const HybridLayer& layer : hybrid_layers(factory, shape, spec.train.global_batch)) {
    if (layer.model_parallel()) choice.layers.push_back(layer.name);
    told.push_back(fmt::format("{} {}-parallel (|D| {}, |W| {})", layer.name,
                               layer.model_parallel() ? "model" : "data", layer.inputs, layer.weights));
  }
  choice.why = told.empty() ? "the model has no fully connected layers: all is data-parallel"
                            : fmt::format("{}", fmt::join(told, "; "));
  return choice;
}

}  // namespace starling
