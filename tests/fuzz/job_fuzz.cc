// Reads any bytes as `job.json` or as a rank's part of a job's checkpoint. The readers must refuse them with
// an Error, or return a state and arrays that are equal after writing and reading. Most inputs get the right
// hash, without which the readers refuse them at once.
#include <cstring>
#include <string>

#include "starling/base/byte_hash.h"
#include "starling/base/error.h"
#include "starling/base/json_depth.h"
#include "starling/job/job_checkpoint.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/job_folder.h"
#include "tests/fuzz/lone_group.h"

namespace starling {
namespace {

JobCheckpointOptions options_of(const JobFolder& folder) {
  return {.folder = folder.path().string(), .job = "topics", .problem = {{"topics", "100"}}};
}

void read_manifest(const JobFolder& folder, const std::string& text) {
  LoneGroup group;
  folder.write("job.json", text);
  try {
    const auto state = JobCheckpoint(group, options_of(folder)).find();
    require_property(state.has_value());
    require_property(state->step >= 0 && state->step <= int64_t{1} << 53);
    require_property(state->ranks >= 1 && state->ranks <= 1 << 20);
    JobCheckpoint(group, options_of(folder)).save(state->step, {}, state->values);
    const auto again = JobCheckpoint(group, options_of(folder)).find();
    require_property(again && again->step == state->step && again->values == state->values);
  } catch (const Error& error) {
    require_property(error.code() == ErrorCode::kCheckpoint || error.code() == ErrorCode::kConfig);
  }
}

// Returns the manifest with its right hash, or an empty text if `text` is no JSON object.
std::string with_right_hash(const std::string& text) {
  using Json = nlohmann::json;
  try {
    Json manifest = parse_shallow<Json>(text, 16);
    return manifest.is_object() ? JobFolder::hashed(std::move(manifest)) : "";
  } catch (const Json::exception&) {
    return "";
  }
}

template <typename T>
void get(const CheckpointArrays& arrays, const std::string& name) {
  try {
    arrays.get<T>(name);
  } catch (const Error& error) {
    require_property(error.code() == ErrorCode::kCheckpoint);
  }
}

// Reads a part whose head names the rank that reads it.
void read_part(const std::string& content) {
  int64_t step = 0, rank = 0, ranks = 0;
  if (content.size() >= 32) {
    std::memcpy(&step, content.data() + 8, 8);
    std::memcpy(&rank, content.data() + 16, 8);
    std::memcpy(&ranks, content.data() + 24, 8);
  }
  const int own = static_cast<int>(rank), all = static_cast<int>(ranks);
  try {
    const CheckpointArrays arrays = CheckpointArrays::parse("part", content, step, own, all);
    const std::string written = arrays.write(step, own, all);
    require_property(written.size() <= content.size());
    require_property(CheckpointArrays::parse("part", written, step, own, all).write(step, own, all) ==
                     written);
    for (const char* name : {"", "topics", "begin", "none"}) {
      get<int64_t>(arrays, name);
      get<uint16_t>(arrays, name);
    }
  } catch (const Error& error) {
    require_property(error.code() == ErrorCode::kCheckpoint);
  }
}

}  // namespace
}  // namespace starling

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace starling;
  static const JobFolder folder;
  FuzzInput input(data, size);
  const int kind = input.byte() % 3;
  std::string content = input.text(size);
  if (kind == 0) {
    read_manifest(folder, content);
    if (const std::string right = with_right_hash(content); !right.empty()) read_manifest(folder, right);
    return 0;
  }
  if (kind == 1) {
    const uint64_t hash = hash_bytes(content);
    content.append(reinterpret_cast<const char*>(&hash), sizeof(hash));
  }
  read_part(content);
  return 0;
}
