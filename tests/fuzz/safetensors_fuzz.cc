// Parses any bytes as a whole safetensors file. The parser must refuse them with a FileError, or return
// tensors whose bytes lie one after another in the file and fit their shapes.
#include <cstring>
#include <map>
#include <string>

#include "starling/weights/weights_file.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace starling;
  using namespace starling::weights;
  try {
    File file("f", size, [data, size](uint64_t offset, void* out, size_t count) {
      require_property(offset <= size && count <= size - offset);
      std::memcpy(out, data + offset, count);
    });
    if (file.format() != Format::kSafetensors) return 0;
    uint64_t begin = 0;
    std::memcpy(&begin, data, 8);
    require_property(begin <= size - 8);
    begin += 8;
    std::map<std::pair<uint64_t, uint64_t>, int> ranges;
    for (const Tensor& tensor : file.tensors()) {
      require_property(tensor.offset >= begin && tensor.offset <= size &&
                       tensor.bytes() <= size - tensor.offset);
      require_property(tensor.contiguous() && file.read(tensor).size() == tensor.bytes());
      ++ranges[{tensor.offset, tensor.offset + tensor.bytes()}];
    }
    uint64_t next = begin;
    for (const auto& [range, count] : ranges) {
      require_property(range.first == next && (count == 1 || range.first == range.second));
      next = range.second;
    }
    require_property(next == size);
  } catch (const FileError&) {
  }
  return 0;
}
