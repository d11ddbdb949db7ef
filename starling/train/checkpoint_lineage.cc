#include "starling/train/checkpoint_lineage.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "starling/base/json_number.h"

namespace starling {

bool Lineage::holds(const Lineage& other, int64_t step) const {
  if (other.incarnation.empty()) return false;
  if (other.incarnation == incarnation) return true;
  return std::any_of(ancestors.begin(), ancestors.end(), [&](const Ancestor& ancestor) {
    return ancestor.incarnation == other.incarnation && step <= ancestor.step;
  });
}

Lineage continued(const Lineage& parent, int64_t step, const std::string& incarnation, int64_t epoch) {
  Lineage lineage{parent.run.empty() ? incarnation : parent.run, incarnation, epoch, parent.ancestors};
  lineage.ancestors.push_back({parent.incarnation, step});
  return lineage;
}

void put_lineage(nlohmann::json& manifest, const Lineage& lineage) {
  manifest["run"] = lineage.run;
  manifest["incarnation"] = lineage.incarnation;
  manifest["epoch"] = lineage.epoch;
  manifest["ancestors"] = nlohmann::json::array();
  for (const Ancestor& ancestor : lineage.ancestors)
    manifest["ancestors"].push_back({{"incarnation", ancestor.incarnation}, {"step", ancestor.step}});
}

Lineage lineage_of(const nlohmann::json& manifest) {
  Lineage lineage;
  if (!manifest.contains("incarnation")) return lineage;
  lineage.run = manifest.at("run").get<std::string>();
  lineage.incarnation = manifest.at("incarnation").get<std::string>();
  lineage.epoch = integer_of<int64_t>(manifest.at("epoch"));
  for (const auto& ancestor : manifest.at("ancestors"))
    lineage.ancestors.push_back(
        {ancestor.at("incarnation").get<std::string>(), integer_of<int64_t>(ancestor.at("step"))});
  return lineage;
}

}  // namespace starling
