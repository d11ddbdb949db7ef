// JobFolder is the folder of a job's checkpoint in memory. A fuzzer fills it with files that have right
// hashes.
#pragma once

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "starling/base/byte_hash.h"
#include "starling/base/read_file.h"
#include "starling/job/job_checkpoint.h"
#include "tests/fuzz/memory_folder.h"

namespace starling {

// Not thread-safe.
class JobFolder : public MemoryFolder {
 public:
  // Replaces the part of a rank.
  void write_part(const CheckpointArrays& arrays, int64_t step, int rank, int ranks) const {
    write("part-" + std::to_string(step) + "-" + std::to_string(rank) + "-of-" + std::to_string(ranks),
          arrays.write(step, rank, ranks));
  }
  // Reads `job.json`, which a writer of Starling has made.
  nlohmann::json manifest() const {
    return nlohmann::json::parse(read_file((path() / "job.json").string()).text);
  }
  // Replaces `job.json` and gives it its right hash.
  void write_manifest(nlohmann::json manifest) const { write("job.json", hashed(std::move(manifest))); }
  // Returns a manifest as text with its right hash.
  static std::string hashed(nlohmann::json manifest) {
    using Json = nlohmann::json;
    manifest.erase("hash");
    const std::string text = manifest.dump(-1, ' ', false, Json::error_handler_t::replace);
    manifest["hash"] = fmt::format("{:016x}", hash_bytes(text));
    return manifest.dump(-1, ' ', false, Json::error_handler_t::replace);
  }
};

}  // namespace starling
