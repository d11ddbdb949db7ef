// Recipes: the settings that a model, an optimizer, an exchange or a codec brings as its defaults. A value
// that the user gives wins over every recipe. docs/benchmarks.md#recipes has the runs that the recipes were
// chosen by.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "starling/spec/config.h"

namespace starling {

// One recipe of a model of the zoo.
struct ModelRecipe {
  std::string_view model;
  std::string_view settings;  // "key=value" pairs between spaces
  bool published = false;     // The settings are those of the model's paper and were not run here.
};

// The recipes of all models, in no particular order.
std::span<const ModelRecipe> model_recipes();

// Gives every key without an origin the value that the recipes of the configuration's model, optimizer,
// exchange and codec have for it. The key's origin becomes kRecipe. Values of recipes that were applied
// earlier are replaced, so the function may be called again after the configuration has changed.
void apply_recipes(Config& config);

// Returns the multiple of `unit` (above 0) that is nearest to `batch` and at least `unit`. Of two that are
// equally near it is the larger one. This is how a batch that the user has not given becomes one that the
// replicas share equally.
int64_t nearest_batch(int64_t batch, int64_t unit);

// Returns a warning if the learning rate comes from the program or a file, and a flag or --set chooses an
// optimizer, an exchange or a codec whose recipe has another rate. Call it after apply_recipes().
std::optional<std::string> rate_warning(const Config& config);

}  // namespace starling
