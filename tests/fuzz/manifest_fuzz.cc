// Reads any text as the manifest of a checkpoint. The reader must call the checkpoint damaged, or name only
// files that are in the folder with the size and the hash that the manifest gives. A text that is JSON is
// read a second time with the right hash of the manifest, without which the reader refuses version 2 early.
#include <fmt/format.h>
#include <xxhash.h>

#include <nlohmann/json.hpp>
#include <string>

#include "starling/base/json_depth.h"
#include "starling/train/checkpoint_folder.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/memory_folder.h"

namespace starling {
namespace {

// A folder with two files of a checkpoint.
struct Checkpoint : MemoryFolder {
  Checkpoint() {
    write("state.json", "{}\n");
    write("model.safetensors", "model");
  }
};

void read_manifest(const Checkpoint& checkpoint, const std::string& text, bool right_hash) {
  checkpoint.write("manifest.json", text);
  const CheckpointCheck sizes = check_checkpoint(checkpoint.path(), false);
  const CheckpointCheck hashes = check_checkpoint(checkpoint.path(), true);
  require_property(sizes.whole() || !hashes.whole());
  require_property(sizes.version == hashes.version && sizes.newer == hashes.newer);
  require_property(!sizes.newer || sizes.damage.empty());
  require_property(!right_hash ||
                   sizes.damage != "the content of manifest.json does not have the manifest's hash");
}

// Returns the manifest with its right hash, or an empty text if `text` is no JSON object.
std::string with_right_hash(const std::string& text) {
  using Json = nlohmann::json;
  try {
    Json manifest = parse_shallow<Json>(text, kDeepestJson);
    if (!manifest.is_object()) return "";
    manifest.erase("manifest_xxh3");
    const std::string hashed = manifest.dump();
    const XXH128_hash_t hash = XXH3_128bits(hashed.data(), hashed.size());
    manifest["manifest_xxh3"] = fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
    return manifest.dump();
  } catch (const Json::exception&) {
    return "";
  }
}

}  // namespace
}  // namespace starling

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace starling;
  static const Checkpoint checkpoint;
  const std::string text(reinterpret_cast<const char*>(data), size);
  read_manifest(checkpoint, text, false);
  if (const std::string right = with_right_hash(text); !right.empty()) read_manifest(checkpoint, right, true);
  return 0;
}
