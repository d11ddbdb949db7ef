// Reads any text as the manifest of a checkpoint. The reader must call the checkpoint damaged, or name only
// files that are in the folder with the size and the hash that the manifest gives.
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "starling/train/checkpoint_folder.h"
#include "tests/fuzz/input.h"

namespace starling {
namespace {

// A folder with two files of a checkpoint. It is removed when the process ends normally.
struct Checkpoint {
  Checkpoint() {
    std::string pattern = std::filesystem::exists("/dev/shm") ? "/dev/shm/fuzz-XXXXXX" : "/tmp/fuzz-XXXXXX";
    require_property(::mkdtemp(pattern.data()) != nullptr);
    path = pattern;
    std::ofstream(path / "state.json") << "{}\n";
    std::ofstream(path / "model.safetensors") << "model";
  }
  ~Checkpoint() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  std::filesystem::path path;
};

}  // namespace
}  // namespace starling

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace starling;
  static const Checkpoint checkpoint;
  std::ofstream(checkpoint.path / "manifest.json", std::ios::binary)
      .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  const CheckpointCheck sizes = check_checkpoint(checkpoint.path, false);
  const CheckpointCheck hashes = check_checkpoint(checkpoint.path, true);
  require_property(sizes.whole() || !hashes.whole());
  require_property(sizes.version == hashes.version && sizes.newer == hashes.newer);
  require_property(!sizes.newer || sizes.damage.empty());
  return 0;
}
