// Reads any bytes as lbfgs.txt or as a rank's part of a checkpoint of L-BFGS. The readers must refuse them
// with an Error, or return a state that is equal after writing and reading. Most inputs get the right hash.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>

#include "starling/base/byte_hash.h"
#include "starling/base/error.h"
#include "starling/base/read_file.h"
#include "starling/lbfgs/lbfgs_checkpoint.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/memory_folder.h"

namespace starling {
namespace {

constexpr int kMemory = 2;
constexpr int64_t kElements = 5;
constexpr VectorId kSaved[] = {kPoint, kGradient, s_of(0), y_of(0), s_of(1), y_of(1)};

bool is_equal(const LbfgsManifest& a, const LbfgsManifest& b) {
  const MinimizeState &s = a.state, &t = b.state;
  return a.elements == b.elements && a.memory == b.memory && a.ridge == b.ridge && a.samples == b.samples &&
         a.ranks == b.ranks && s.iterations == t.iterations && s.evaluations == t.evaluations &&
         s.objective == t.objective && s.largest_gradient == t.largest_gradient &&
         s.least_objective == t.least_objective && s.least_gradient == t.least_gradient &&
         s.fruitless == t.fruitless && s.exhausted == t.exhausted && s.slots == t.slots &&
         s.started == t.started;
}

void read_text(const MemoryFolder& folder, const std::string& text) {
  folder.write("lbfgs.txt", text);
  try {
    const auto read = read_manifest(folder.path().string());
    require_property(read.has_value());
    const MinimizeState& state = read->state;
    require_property(read->elements >= 0 && read->ranks >= 1 && read->memory >= 1);
    require_property(state.iterations >= 0 && state.iterations <= int64_t{1} << 53);
    require_property(state.evaluations >= 0 && state.evaluations <= int64_t{1} << 53);
    require_property(std::ssize(state.slots) <= read->memory);
    for (const int slot : state.slots) require_property(slot >= 0 && slot < read->memory);
    write_manifest(folder.path().string(), *read);
    const auto again = read_manifest(folder.path().string());
    require_property(again && is_equal(*again, *read));
  } catch (const Error& error) {
    require_property(error.code() == ErrorCode::kCheckpoint);
  }
}

// Reads parts that the input fills. The heads, the lengths and the hashes are right unless the input damages
// them.
void read_parts(FuzzInput& input, const MemoryFolder& folder) {
  const int ranks = 1 + input.byte() % 3;
  const int cut = input.byte();
  for (int rank = 0; rank < ranks; ++rank) {
    const CheckpointPlace place{folder.path().string(), 3, ranks, rank};
    VectorShard shard(kElements, ranks, rank, kMemory);
    for (const VectorId id : kSaved) {
      const auto values = std::as_writable_bytes(shard.vector(id));
      const std::string bytes = input.text(values.size());
      std::memcpy(values.data(), bytes.data(), bytes.size());
    }
    write_checkpoint_part(place, shard, kMemory);
    if (cut < 240) continue;
    std::string file = read_file(place.file()).text;
    if (cut >= 250) {
      file.resize(file.size() - std::min<size_t>(file.size(), input.byte()));
    } else {
      file[input.byte() % file.size()] ^= 1;
    }
    folder.write(std::filesystem::path(place.file()).filename().string(), file);
  }
  const int own_ranks = 1 + input.byte() % 3, own = input.byte() % own_ranks;
  VectorShard shard(kElements, own_ranks, own, kMemory);
  try {
    read_checkpoint_parts(folder.path().string(), 3, ranks, shard, kElements, kMemory);
    // The parts of one rank are equal after writing and reading.
    if (own_ranks > 1) return;
    write_checkpoint_part({folder.path().string(), 3, 1, 0}, shard, kMemory);
    VectorShard again(kElements, 1, 0, kMemory);
    read_checkpoint_parts(folder.path().string(), 3, 1, again, kElements, kMemory);
    for (const VectorId id : kSaved)
      require_property(std::memcmp(again.vector(id).data(), shard.vector(id).data(), 8 * kElements) == 0);
  } catch (const Error& error) {
    require_property(error.code() == ErrorCode::kCheckpoint && cut >= 240);
  }
}

}  // namespace
}  // namespace starling

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace starling;
  static const MemoryFolder folder;
  FuzzInput input(data, size);
  const int kind = input.byte() % 3;
  if (kind == 2) {
    read_parts(input, folder);
    return 0;
  }
  std::string text = input.text(size);
  if (kind == 1) text += fmt::format("hash {:016x}\n", hash_bytes(text));
  read_text(folder, text);
  return 0;
}
