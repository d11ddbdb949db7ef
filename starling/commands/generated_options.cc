#include "starling/commands/generated_options.h"

#include <fmt/format.h>

#include "starling/base/error.h"

namespace starling {

void refuse_beside_data(const std::string& data, const char* name,
                        std::initializer_list<std::pair<bool, const char*>> options) {
  if (data.empty()) return;
  for (const auto& [differs, option] : options) {
    if (differs)
      throw ConfigError(
          option,
          fmt::format("the option describes generated data, which {} replaces; leave out one of the two",
                      name));
  }
}

}  // namespace starling
