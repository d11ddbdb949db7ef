// Reads any text as state.json of a checkpoint. The reader must refuse it with an exception of the JSON
// library or a ConfigError, or return a state that is equal after writing and reading.
#include <nlohmann/json.hpp>
#include <string>

#include "starling/base/error.h"
#include "starling/train/checkpoint_scalars.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace starling;
  const std::string text(reinterpret_cast<const char*>(data), size);
  CheckpointScalars state;
  try {
    state = parse_checkpoint_scalars("state.json", text);
  } catch (const nlohmann::json::exception&) {
    return 0;
  } catch (const ConfigError&) {
    return 0;
  }
  for (const int64_t count : {state.step, state.total_steps, state.epoch, state.batches})
    require_property(count >= 0 && count <= int64_t{1} << 53);
  const std::string written = write_checkpoint_scalars(state);
  require_property(write_checkpoint_scalars(parse_checkpoint_scalars("state.json", written)) == written);
  return 0;
}
