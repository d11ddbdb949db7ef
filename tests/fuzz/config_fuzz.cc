// Parses any text as a TOML configuration, as the argument of --set, or as the configuration in a checkpoint.
// The parser must refuse it with a ConfigError, or give a configuration that is equal after printing and
// reading.
#include <nlohmann/json.hpp>
#include <string>

#include "starling/base/error.h"
#include "starling/spec/config.h"
#include "starling/spec/print.h"
#include "tests/fuzz/input.h"

namespace starling {
namespace {

void check_prints(const RunSpec& spec) {
  const auto json = spec_to_json(spec);
  require_property(spec_to_json(spec_from_json(json, "again")).dump() == json.dump());
}

}  // namespace
}  // namespace starling

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace starling;
  FuzzInput input(data, size);
  const int kind = input.byte() % 3;
  const std::string text = input.text(size);
  try {
    Config config;
    if (kind == 0) {
      apply_toml(config, text, "f.toml");
    } else if (kind == 1) {
      apply_set(config, text);
    } else {
      const auto json = nlohmann::json::parse(text, nullptr, false);
      if (json.is_discarded()) return 0;
      config.spec = spec_from_json(json, "state.json");
    }
    check_prints(config.spec);
  } catch (const ConfigError&) {
  }
  return 0;
}
