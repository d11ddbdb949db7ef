// Writes and parses files of compressed weights, which `starling compress` makes (Han, Mao, Dally, Deep
// Compression, arXiv 1510.00149). docs/reference/weight-files.md describes every byte.
//
// The parser treats a file as hostile and compares every size with the file before it allocates memory. It
// reads some files that the writer does not make, for example with a code of more bits than necessary.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "starling/weights/weights_file.h"

namespace starling {

// The version of the format that this code writes, and the only one that it reads.
inline constexpr int kCompressedVersion = 1;

// The bytes of all decoded tensors of a file are at most this number and kMaxExpansion times the file.
inline constexpr uint64_t kMaxDecodedBytes = uint64_t{1} << 30;
inline constexpr uint64_t kMaxExpansion = 256;

// A tensor of the file. It is stored as it is (dense), or as clustered weights and zeros between them.
struct CompressedTensor {
  std::string name;                             // unique in the file, UTF-8, not empty
  weights::Dtype dtype = weights::Dtype::kF32;  // clustered: kF32 or kF16
  std::vector<int64_t> shape = {};              // empty for a scalar; each size is below 2^32
  bool clustered = false;
  // Dense: the elements in row-major order. Clustered: the codebook, which has the value of each cluster.
  std::vector<std::byte> values = {};
  // The rest is used if the tensor is clustered.
  std::vector<uint64_t> positions = {};  // of the weights that remain, in row-major order; they increase
  std::vector<uint16_t> clusters = {};   // the cluster of each of these weights
  int index_bits = 0;  // b of relative_index.h; 0: the writer takes the b of the fewest bytes

  // The product of the shape.
  uint64_t elements() const;
  // The size of the decoded elements in bytes.
  uint64_t bytes() const { return elements() * weights::row_of(dtype).bytes; }
};

// What a tensor takes in a file.
struct CompressedSize {
  uint64_t bytes = 0;        // of everything that the file says about the tensor
  uint64_t padding = 0;      // number of padding zeros
  int index_bits = 0;        // b
  double distance_bits = 0;  // mean length of a distance's code
  double cluster_bits = 0;   // mean length of a cluster's code
};

// Returns a whole file. `sizes`, if given, receives the size of each tensor. Errors: ConfigError of the name
// of a tensor that the format cannot hold, or that the parser would refuse.
std::vector<std::byte> write_compressed(const std::vector<CompressedTensor>& tensors,
                                        std::vector<CompressedSize>* sizes = nullptr);

// Returns true if the bytes begin as a file of compressed weights does.
bool is_compressed(std::span<const std::byte> bytes);

// Parses a whole file. `from` is its path, for messages. Errors: DataError that names the file, the offset
// and the remedy.
std::vector<CompressedTensor> parse_compressed(std::span<const std::byte> bytes, const std::string& from);

// Returns the elements of a tensor in row-major order. Weights that were pruned are 0.
std::vector<std::byte> decoded(const CompressedTensor& tensor);

// Returns the checksum that ends a file: XXH3 (64 bits) of all bytes before it.
uint64_t compressed_checksum(std::span<const std::byte> bytes);

}  // namespace starling
