// Parses any text as a placement graph with devices. The parser must refuse it with a ConfigError, or return
// a graph that is equal after printing and parsing.
#include <string>

#include "starling/base/error.h"
#include "starling/place/graph_file.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace starling;
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    const PlacementFile file = parse_placement_file(text, "f.json");
    const std::string printed = placement_file_text(file.graph);
    require_property(placement_file_text(parse_placement_file(printed, "again").graph) == printed);
  } catch (const ConfigError&) {
  }
  return 0;
}
