// Parses any text as the index of a sharded model. The parser must refuse it with a DataError, or name only
// files beside the index.
#include <string>

#include "starling/base/error.h"
#include "starling/nn/safetensors/safetensors_index.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace starling;
  try {
    const SafetensorsIndex index =
        parse_safetensors_index("folder/i", std::string(reinterpret_cast<const char*>(data), size));
    for (const auto& [path, names] : index.shards) {
      require_property(path.starts_with("folder/") && path.find('/', 7) == std::string::npos &&
                       !names.empty());
      require_property(path != "folder/" && path != "folder/." && path != "folder/..");
    }
  } catch (const DataError&) {
  }
  return 0;
}
