#include "starling/run/choice/hybrid_choice.h"

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

HybridChoice choose_hybrid(const RunSpec& spec, const ModelFactory& factory, const SourceInfo& data,
                           int ranks) {
  HybridChoice choice;
  if (spec.train.hybrid != "auto") {
    choice.layers = names_between_commas(spec.train.hybrid);
    choice.why = fmt::format("model-parallel, as configured: {}", fmt::join(choice.layers, " "));
    return choice;
  }
  const ModelShape shape{data.input_shape, data.classes, data.text};
  std::vector<std::string> told;
  for (const HybridLayer& layer : hybrid_layers(factory, shape, spec.train.global_batch)) {
    const bool model_parallel = layer.model_parallel(ranks);
    if (model_parallel) choice.layers.push_back(layer.name);
    told.push_back(
        fmt::format("{} {}-parallel (a rank receives {:.0f} values per step, or {:.0f} {}-parallel)",
                    layer.name, model_parallel ? "model" : "data",
                    model_parallel ? layer.model_elements(ranks) : layer.data_elements(ranks),
                    model_parallel ? layer.data_elements(ranks) : layer.model_elements(ranks),
                    model_parallel ? "data" : "model"));
  }
  choice.why = told.empty() ? "the model has no fully connected layers: the whole model is data-parallel"
                            : fmt::format("{}", fmt::join(told, "; "));
  return choice;
}

}  // namespace starling
