// Reads any bytes as lbfgs.txt or as a rank's part of a checkpoint of L-BFGS. The readers must refuse them
// with an Error, or return a state that is equal after writing and reading. Most inputs get the right hash.
#include <fmt/format.h>
#include <stdlib.h>

#include <bit>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "starling/base/byte_hash.h"
#include "starling/base/error.h"
#include "starling/base/keyed_random.h"
#include "starling/lbfgs/lbfgs_checkpoint.h"
#include "tests/fuzz/input.h"

namespace starling {
namespace {

constexpr int kMemory = 2;
constexpr int64_t kElements = 5;

// A folder in memory. It is removed when the process ends normally.
struct Folder {
  Folder() {
    std::string pattern = std::filesystem::exists("/dev/shm") ? "/dev/shm/fuzz-XXXXXX" : "/tmp/fuzz-XXXXXX";
    require_property(::mkdtemp(pattern.data()) != nullptr);
    path = pattern;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  void write(const std::string& name, const std::string& content) const {
    std::ofstream(path + "/" + name, std::ios::binary) << content;
  }
  std::string path;
};

bool is_equal(const LbfgsManifest& a, const LbfgsManifest& b) {
  const MinimizeState &s = a.state, &t = b.state;
  return a.elements == b.elements && a.memory == b.memory && a.ridge == b.ridge && a.samples == b.samples &&
         a.ranks == b.ranks && s.iterations == t.iterations && s.evaluations == t.evaluations &&
         s.objective == t.objective && s.largest_gradient == t.largest_gradient &&
         s.least_objective == t.least_objective && s.least_gradient == t.least_gradient &&
         s.fruitless == t.fruitless && s.exhausted == t.exhausted && s.slots == t.slots &&
         s.started == t.started;
}

void read_text(const Folder& folder, const std::string& text) {
  folder.write("lbfgs.txt", text);
  try {
    const auto read = read_manifest(folder.path);
    require_property(read.has_value());
    const MinimizeState& state = read->state;
    require_property(read->elements >= 0 && read->ranks >= 1 && read->memory >= 1);
    require_property(state.iterations >= 0 && state.iterations <= int64_t{1} << 53);
    require_property(state.evaluations >= 0 && state.evaluations <= int64_t{1} << 53);
    require_property(std::ssize(state.slots) <= read->memory);
    for (const int slot : state.slots) require_property(slot >= 0 && slot < read->memory);
    write_manifest(folder.path, *read);
    const auto again = read_manifest(folder.path);
    require_property(again && is_equal(*again, *read));
  } catch (const Error& error) {
    require_property(error.code() == ErrorCode::kCheckpoint);
  }
}

// Reads parts that the input fills. The heads, the lengths and the hashes are right unless the input damages
// them.
void read_parts(FuzzInput& input, const Folder& folder) {
  const int ranks = 1 + input.byte() % 3;
  const int cut = input.byte();
  for (int rank = 0; rank < ranks; ++rank) {
    const CheckpointPlace place{folder.path, 3, ranks, rank};
    const VectorSlice slice = slice_of_shard(kElements, ranks, rank);
    const auto numbers = static_cast<size_t>((2 + 2 * kMemory) * slice.size());
    std::string bytes = input.text(8 * numbers);
    bytes.resize(8 * numbers);
    uint64_t hash = kGolden;
    for (size_t i = 0; i < numbers; ++i) {
      uint64_t word = 0;
      std::memcpy(&word, bytes.data() + 8 * i, 8);
      hash = mix64(hash + kGolden + word);
    }
    const uint64_t head[] = {0x31304246474c5453,
                             3,
                             kElements,
                             static_cast<uint64_t>(slice.begin),
                             static_cast<uint64_t>(slice.end),
                             kMemory};
    std::string file(reinterpret_cast<const char*>(head), sizeof(head));
    file += bytes;
    file.append(reinterpret_cast<const char*>(&hash), sizeof(hash));
    if (cut >= 250 && !file.empty()) file.resize(file.size() - std::min<size_t>(file.size(), input.byte()));
    if (cut >= 240 && cut < 250 && !file.empty()) file[input.byte() % file.size()] ^= 1;
    std::ofstream(place.file(), std::ios::binary) << file;
  }
  const int own_ranks = 1 + input.byte() % 3, own = input.byte() % own_ranks;
  VectorShard shard(kElements, own_ranks, own, kMemory);
  try {
    read_checkpoint_parts(folder.path, 3, ranks, shard, kElements, kMemory);
    // The parts of one rank are equal after writing and reading.
    if (own_ranks > 1) return;
    write_checkpoint_part({folder.path, 3, 1, 0}, shard, kMemory);
    VectorShard again(kElements, 1, 0, kMemory);
    read_checkpoint_parts(folder.path, 3, 1, again, kElements, kMemory);
    for (VectorId id = kFirstPair; id < s_of(kMemory); ++id)
      require_property(std::memcmp(again.vector(id).data(), shard.vector(id).data(), 8 * kElements) == 0);
  } catch (const Error& error) {
    require_property(error.code() == ErrorCode::kCheckpoint && cut >= 240);
  }
}

}  // namespace
}  // namespace starling

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace starling;
  static const Folder folder;
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
