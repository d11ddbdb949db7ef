// Parses any bytes as a file of compressed weights, as they are and with the right checksum behind them.
// Without this checksum the fuzzer would get no further. The parser must refuse the bytes with a DataError,
// or return tensors that fit their shapes. The writer makes a file of these tensors, and they must come back
// from this file.
#include <cstring>
#include <string>
#include <vector>

#include "starling/base/error.h"
#include "starling/compress/compressed_file.h"
#include "tests/fuzz/input.h"

namespace starling {
namespace {

constexpr uint64_t kDecoded = 1 << 24;  // bytes of a tensor that are decoded

void check(const CompressedTensor& tensor) {
  const size_t element = weights::row_of(tensor.dtype).bytes;
  require_property(!tensor.name.empty() && tensor.shape.size() <= weights::kMaxDims);
  require_property(tensor.positions.size() == tensor.clusters.size());
  if (tensor.clustered) {
    require_property(tensor.values.size() % element == 0);
    for (size_t i = 0; i < tensor.positions.size(); ++i) {
      require_property(tensor.positions[i] < tensor.elements());
      require_property(i == 0 || tensor.positions[i - 1] < tensor.positions[i]);
      require_property(tensor.clusters[i] < tensor.values.size() / element);
    }
  }
  if (tensor.bytes() <= kDecoded) require_property(decoded(tensor).size() == tensor.bytes());
}

void parse(const std::vector<std::byte>& bytes) {
  std::vector<CompressedTensor> tensors;
  try {
    tensors = parse_compressed(bytes, "f");
  } catch (const DataError&) {
    return;
  }
  for (const CompressedTensor& tensor : tensors) check(tensor);
  const std::vector<CompressedTensor> again = parse_compressed(write_compressed(tensors), "again");
  require_property(again.size() == tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const CompressedTensor &a = tensors[i], &b = again[i];
    require_property(a.name == b.name && a.dtype == b.dtype && a.shape == b.shape && a.values == b.values);
    require_property(a.clustered == b.clustered && a.positions == b.positions && a.clusters == b.clusters);
  }
}

}  // namespace
}  // namespace starling

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace starling;
  const auto* begin = reinterpret_cast<const std::byte*>(data);
  std::vector<std::byte> bytes(begin, begin + size);
  parse(bytes);
  const uint64_t sum = compressed_checksum(bytes);
  bytes.resize(size + sizeof(sum));
  std::memcpy(bytes.data() + size, &sum, sizeof(sum));
  parse(bytes);
  return 0;
}
