// Reads any bytes as a tar, plain or compressed. The reader must refuse them with a DataError, or return
// members whose bytes can be read.
#include <string>

#include "starling/base/error.h"
#include "starling/data/formats/archive.h"
#include "tests/fuzz/file_in_memory.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace starling;
  static FileInMemory file;
  try {
    const Archive archive(file.with(std::string(reinterpret_cast<const char*>(data), size)),
                          [](const std::string& name) { return !name.ends_with(".txt"); });
    uint64_t sum = 0;
    for (const Archive::Member& member : archive.members()) {
      require_property(!member.path.ends_with("/") && !member.path.starts_with("./"));
      for (const uint8_t byte : member.bytes) sum += byte;
    }
    require_property(sum < ~uint64_t{0});
  } catch (const DataError&) {
  }
  return 0;
}
