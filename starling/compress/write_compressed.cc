#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>

#include "starling/base/error.h"
#include "starling/base/utf8.h"
#include "starling/compress/compressed_file.h"
#include "starling/compress/compressed_layout.h"
#include "starling/compress/huffman.h"
#include "starling/compress/relative_index.h"

namespace starling {
namespace {

// The file as it grows.
class Bytes {
 public:
  template <typename Integer>
  void number(uint64_t value) {
    for (size_t i = 0; i < sizeof(Integer); ++i) bytes_.push_back(static_cast<std::byte>(value >> 8 * i));
  }
  void append(const void* from, size_t size) {
    const auto* begin = static_cast<const std::byte*>(from);
    bytes_.insert(bytes_.end(), begin, begin + size);
  }
  void append(const std::vector<std::byte>& from) { append(from.data(), from.size()); }
  size_t size() const { return bytes_.size(); }
  std::vector<std::byte>& all() { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

// The entries of a clustered tensor, and the two codes. Distance d has the symbol d - 1. A padding zero has
// the symbol 0 of the second code, and cluster c has the symbol c + 1.
struct Coded {
  int index_bits = 0;
  std::vector<IndexEntry> entries;
  std::vector<uint8_t> distance_lengths, cluster_lengths;
  uint64_t distance_bits = 0, cluster_bits = 0;
  uint64_t padding = 0;

  uint64_t bits() const {
    return distance_bits + cluster_bits +
           8 * (length_table_bytes(distance_lengths.size()) + length_table_bytes(cluster_lengths.size()));
  }
};

// Returns the lengths without the zeros at the end.
std::vector<uint8_t> without_tail(std::vector<uint8_t> lengths) {
  while (!lengths.empty() && lengths.back() == 0) lengths.pop_back();
  return lengths;
}

Coded coded_with(const CompressedTensor& tensor, int index_bits) {
  Coded coded;
  coded.index_bits = index_bits;
  coded.entries = relative_index(tensor.positions, tensor.elements(), index_bits);
  std::vector<uint64_t> distances(size_t{1} << index_bits);
  std::vector<uint64_t> clusters(tensor.values.size() / weights::row_of(tensor.dtype).bytes + 1);
  size_t weight = 0;
  for (const IndexEntry& entry : coded.entries) {
    ++distances[entry.distance - 1];
    ++clusters[entry.padding ? 0 : size_t{tensor.clusters[weight++]} + 1];
  }
  coded.padding = clusters[0];
  coded.distance_lengths = huffman_lengths(distances);
  coded.cluster_lengths = huffman_lengths(clusters);
  coded.distance_bits = huffman_bits(distances, coded.distance_lengths);
  coded.cluster_bits = huffman_bits(clusters, coded.cluster_lengths);
  coded.distance_lengths = without_tail(coded.distance_lengths);
  coded.cluster_lengths = without_tail(coded.cluster_lengths);
  return coded;
}

Coded coded_of(const CompressedTensor& tensor) {
  if (tensor.index_bits > 0) return coded_with(tensor, tensor.index_bits);
  Coded best = coded_with(tensor, 1);
  for (int bits = 2; bits <= kMaxIndexBits; ++bits) {
    Coded coded = coded_with(tensor, bits);
    if (coded.bits() < best.bits()) best = std::move(coded);
  }
  return best;
}

void append_lengths(Bytes& file, const std::vector<uint8_t>& lengths) {
  file.number<uint16_t>(lengths.size());
  BitWriter bits;
  for (const uint8_t length : lengths) bits.put(length, kLengthBits);
  file.append(bits.bytes());
}

// Returns the payload: for each entry the code of the distance, then that of the cluster.
std::vector<std::byte> payload_of(const CompressedTensor& tensor, const Coded& coded) {
  const HuffmanEncoder distances(coded.distance_lengths), clusters(coded.cluster_lengths);
  BitWriter bits;
  size_t weight = 0;
  for (const IndexEntry& entry : coded.entries) {
    distances.put(bits, entry.distance - 1);
    clusters.put(bits, entry.padding ? 0 : size_t{tensor.clusters[weight++]} + 1);
  }
  return bits.bytes();
}

void append_clustered(Bytes& file, const CompressedTensor& tensor, CompressedSize& size) {
  const Coded coded = coded_of(tensor);
  file.number<uint8_t>(static_cast<uint64_t>(coded.index_bits));
  file.number<uint16_t>(tensor.values.size() / weights::row_of(tensor.dtype).bytes);
  file.append(tensor.values);
  const std::vector<std::byte> payload = payload_of(tensor, coded);
  if (std::max(coded.entries.size(), payload.size()) > std::numeric_limits<uint32_t>::max())
    throw ConfigError(tensor.name, "more than 4294967295 weights remain, or more bytes of them");
  file.number<uint32_t>(coded.entries.size());
  append_lengths(file, coded.distance_lengths);
  append_lengths(file, coded.cluster_lengths);
  file.number<uint32_t>(payload.size());
  file.append(payload);
  const auto entries = static_cast<double>(std::max<size_t>(1, coded.entries.size()));
  size.padding = coded.padding;
  size.index_bits = coded.index_bits;
  size.distance_bits = static_cast<double>(coded.distance_bits) / entries;
  size.cluster_bits = static_cast<double>(coded.cluster_bits) / entries;
}

// Throws if the format cannot hold the tensor.
void check(const CompressedTensor& tensor, std::set<std::string>& names) {
  const auto refuse = [&](const std::string& what) { throw ConfigError(tensor.name, what); };
  constexpr uint64_t kLargest = std::numeric_limits<uint32_t>::max();
  const uint64_t element = weights::row_of(tensor.dtype).bytes;
  if (tensor.name.empty() || tensor.name.size() > std::numeric_limits<uint16_t>::max() ||
      !is_utf8(tensor.name) || !names.insert(tensor.name).second)
    refuse("the name of a tensor is empty, too long, not UTF-8, or occurs twice");
  if (tensor.shape.size() > weights::kMaxDims) refuse("the tensor has more than 64 dimensions");
  for (const int64_t size : tensor.shape) {
    if (size < 0 || static_cast<uint64_t>(size) > kLargest)
      refuse("a size of the tensor is above 4294967295");
  }
  if (!tensor.clustered) {
    if (tensor.values.size() != tensor.bytes()) refuse("the values do not fit the shape");
    return;
  }
  const size_t codebook = tensor.values.size() / element;
  if (tensor.dtype != weights::Dtype::kF32 && tensor.dtype != weights::Dtype::kF16)
    refuse("clustered weights are F32 or F16");
  if (tensor.values.size() % element != 0 || codebook > std::numeric_limits<uint16_t>::max() - 1)
    refuse("the codebook has more than 65534 values, or a part of one");
  if (tensor.index_bits < 0 || tensor.index_bits > kMaxIndexBits)
    refuse(fmt::format("indexes of {} bits; use 1 to {}, or 0 for the fewest bytes", tensor.index_bits,
                       kMaxIndexBits));
  if (tensor.positions.size() != tensor.clusters.size()) refuse("each weight needs a position and a cluster");
  for (size_t i = 0; i < tensor.positions.size(); ++i) {
    if (tensor.positions[i] >= tensor.elements() || tensor.clusters[i] >= codebook ||
        (i > 0 && tensor.positions[i] <= tensor.positions[i - 1]))
      refuse(fmt::format("weight {} has a position or a cluster that does not exist, or is out of order", i));
  }
}

// Throws if a parser would refuse a file of `bytes` bytes because its tensors are too large.
void check_expansion(const std::vector<CompressedTensor>& tensors, uint64_t bytes) {
  const uint64_t limit = kMaxDecodedBytes + kMaxExpansion * bytes;
  uint64_t left = limit;
  for (const CompressedTensor& tensor : tensors) {
    uint64_t size = weights::row_of(tensor.dtype).bytes;
    for (const int64_t side : tensor.shape) {
      if (side > 0 && size > limit / static_cast<uint64_t>(side))
        throw ConfigError(tensor.name,
                          fmt::format("the tensor is larger than the {} bytes that the {} bytes of "
                                      "the file may stand for; keep more weights",
                                      limit, bytes));
      if (side > 0) size *= static_cast<uint64_t>(side);
    }
    if (tensor.elements() == 0) continue;
    if (size > left)
      throw ConfigError(tensor.name,
                        fmt::format("the tensors are larger than the {} bytes that the {} bytes of "
                                    "the file may stand for; keep more weights",
                                    limit, bytes));
    left -= size;
  }
}

}  // namespace

uint64_t CompressedTensor::elements() const {
  uint64_t product = 1;
  for (const int64_t size : shape) product *= static_cast<uint64_t>(size);
  return product;
}

uint64_t compressed_checksum(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

std::vector<std::byte> write_compressed(const std::vector<CompressedTensor>& tensors,
                                        std::vector<CompressedSize>* sizes) {
  Bytes file;
  file.append(kCompressedMagic.data(), kCompressedMagic.size());
  file.number<uint16_t>(kCompressedVersion);
  file.number<uint32_t>(tensors.size());
  std::set<std::string> names;
  for (const CompressedTensor& tensor : tensors) {
    check(tensor, names);
    CompressedSize size;
    const size_t begin = file.size();
    file.number<uint16_t>(tensor.name.size());
    file.append(tensor.name.data(), tensor.name.size());
    file.number<uint8_t>(static_cast<uint64_t>(tensor.dtype));
    file.number<uint8_t>(
        static_cast<uint64_t>(tensor.clustered ? CompressedKind::kClustered : CompressedKind::kDense));
    file.number<uint8_t>(tensor.shape.size());
    for (const int64_t side : tensor.shape) file.number<uint32_t>(static_cast<uint64_t>(side));
    if (tensor.clustered) {
      append_clustered(file, tensor, size);
    } else {
      file.append(tensor.values);
    }
    size.bytes = file.size() - begin;
    if (sizes != nullptr) sizes->push_back(size);
  }
  check_expansion(tensors, file.size() + kChecksumBytes);
  file.number<uint64_t>(compressed_checksum(file.all()));
  return std::move(file.all());
}

}  // namespace starling
