// JobFolder is the folder of a job's checkpoint in memory. A fuzzer fills it with files that have right
// hashes.
#pragma once

#include <fmt/format.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "starling/base/byte_hash.h"
#include "starling/base/json_depth.h"
#include "starling/job/job_checkpoint.h"
#include "tests/fuzz/input.h"

namespace starling {

// The folder is removed when the process ends normally. Not thread-safe.
class JobFolder {
 public:
  JobFolder() {
    std::string pattern = std::filesystem::exists("/dev/shm") ? "/dev/shm/fuzz-XXXXXX" : "/tmp/fuzz-XXXXXX";
    require_property(::mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  ~JobFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  JobFolder(const JobFolder&) = delete;
  JobFolder& operator=(const JobFolder&) = delete;

  std::string path() const { return path_.string(); }
  // Replaces a file.
  void write(const std::string& name, const std::string& content) const {
    std::ofstream(path_ / name, std::ios::binary) << content;
  }
  // Replaces the part of a rank.
  void write_part(const CheckpointArrays& arrays, int64_t step, int rank, int ranks) const {
    write("part-" + std::to_string(step) + "-" + std::to_string(rank) + "-of-" + std::to_string(ranks),
          arrays.write(step, rank, ranks));
  }
  // Reads `job.json`, which a writer of Starling has made.
  nlohmann::json manifest() const {
    std::ifstream file(path_ / "job.json");
    return nlohmann::json::parse(file);
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

 private:
  std::filesystem::path path_;
};

}  // namespace starling
