#include <fmt/format.h>

#include <cstring>
#include <limits>
#include <set>
#include <utility>

#include "starling/base/error.h"
#include "starling/base/utf8.h"
#include "starling/compress/compressed_file.h"
#include "starling/compress/compressed_layout.h"
#include "starling/compress/huffman.h"
#include "starling/compress/relative_index.h"

namespace starling {
namespace {

constexpr const char* kCopy = "copy the file again, or compress the run again";

class Parser {
 public:
  Parser(std::span<const std::byte> bytes, const std::string& from) : bytes_(bytes), from_(from) {}

  std::vector<CompressedTensor> file() {
    read_head();
    const auto count = number<uint32_t>("the number of tensors");
    // The smallest tensor takes 6 bytes.
    if (count > left() / 6) fail(fmt::format("{} tensors do not fit into the file", count));
    std::vector<CompressedTensor> tensors;
    tensors.reserve(count);
    for (uint32_t i = 0; i < count; ++i) tensors.push_back(tensor());
    if (left() > 0) fail(fmt::format("{} bytes follow the last tensor", left()));
    return tensors;
  }

 private:
  [[noreturn]] void fail(const std::string& what, const char* remedy = kCopy) const {
    throw DataError(fmt::format("{}: offset {}: {}; {}", from_, at_, what, remedy));
  }

  size_t left() const { return bytes_.size() - at_; }

  std::span<const std::byte> take(uint64_t size, const char* what) {
    if (size > left()) fail(fmt::format("truncated: {} takes {} bytes, {} are there", what, size, left()));
    const auto taken = bytes_.subspan(at_, size);
    at_ += size;
    return taken;
  }

  template <typename Integer>
  Integer number(const char* what) {
    uint64_t value = 0;
    const auto from = take(sizeof(Integer), what);
    for (size_t i = 0; i < sizeof(Integer); ++i) value |= static_cast<uint64_t>(from[i]) << 8 * i;
    return static_cast<Integer>(value);
  }

  // Reads the magic and the version, and compares the checksum. Leaves the checksum out of what follows.
  void read_head() {
    if (!is_compressed(bytes_)) fail("the file does not begin as compressed weights do");
    at_ = kCompressedMagic.size();
    const auto version = number<uint16_t>("the version");
    if (version != kCompressedVersion) {
      at_ -= sizeof(version);
      fail(fmt::format("format version {}, and this Starling reads version {}", version, kCompressedVersion),
           "update Starling, or compress the run again");
    }
    if (left() < kChecksumBytes)
      fail(fmt::format("truncated: the checksum takes {} bytes, {} are there", kChecksumBytes, left()));
    const size_t end = bytes_.size() - kChecksumBytes;
    limit_ = kMaxDecodedBytes + kMaxExpansion * bytes_.size();
    uint64_t stored = 0;
    std::memcpy(&stored, bytes_.data() + end, kChecksumBytes);
    bytes_ = bytes_.first(end);
    if (stored != compressed_checksum(bytes_)) {
      at_ = end;
      fail("the checksum does not match: the file is damaged");
    }
  }

  CompressedTensor tensor() {
    CompressedTensor tensor;
    const auto name = take(number<uint16_t>("the length of a name"), "the name of a tensor");
    tensor.name.assign(reinterpret_cast<const char*>(name.data()), name.size());
    if (tensor.name.empty() || !is_utf8(tensor.name)) fail("the name of a tensor is empty or not UTF-8");
    if (!names_.insert(tensor.name).second) fail(fmt::format("two tensors are called \"{}\"", tensor.name));
    const auto dtype = number<uint8_t>("a dtype");
    if (dtype >= weights::kDtypes.size()) fail(fmt::format("dtype {} does not exist", dtype));
    tensor.dtype = static_cast<weights::Dtype>(dtype);
    const auto kind = number<uint8_t>("the kind of a tensor");
    if (kind > static_cast<uint8_t>(CompressedKind::kClustered))
      fail(fmt::format("kind {} of tensor \"{}\" does not exist", kind, tensor.name));
    tensor.clustered = kind == static_cast<uint8_t>(CompressedKind::kClustered);
    read_shape(tensor);
    if (tensor.clustered) {
      read_clustered(tensor);
    } else {
      const auto values = take(tensor.bytes(), "a dense tensor");
      tensor.values.assign(values.begin(), values.end());
    }
    return tensor;
  }

  void read_shape(CompressedTensor& tensor) {
    const auto dims = number<uint8_t>("the number of dimensions");
    if (dims > weights::kMaxDims) fail(fmt::format("tensor \"{}\" has {} dimensions", tensor.name, dims));
    uint64_t bytes = weights::row_of(tensor.dtype).bytes;
    bool empty = false;
    bool large = false;
    for (int d = 0; d < dims; ++d) {
      const auto side = number<uint32_t>("a size of a tensor");
      tensor.shape.push_back(side);
      empty = empty || side == 0;
      large = large || (side > 0 && bytes > limit_ / side);
      if (!large && side > 0) bytes *= side;
    }
    // Without the sizes that are 0, the product must fit, too, so that no product of sizes overflows.
    if (large || (!empty && bytes > limit_ - decoded_)) {
      fail(fmt::format("tensor \"{}\" is larger than {} bytes and {} times the file allow", tensor.name,
                       kMaxDecodedBytes, kMaxExpansion));
    }
    if (!empty) decoded_ += bytes;
  }

  std::vector<uint8_t> lengths(size_t most, const char* what) {
    const auto count = number<uint16_t>(what);
    if (count > most) fail(fmt::format("{} has {} lengths, at most {} are possible", what, count, most));
    BitReader bits(take(length_table_bytes(count), what));
    std::vector<uint8_t> lengths(count);
    for (uint8_t& length : lengths) length = static_cast<uint8_t>(bits.number(kLengthBits));
    while (bits.left() > 0) {
      if (bits.bit() != 0) fail(fmt::format("the unused bits behind {} are not 0", what));
    }
    if (!is_huffman_code(lengths) || (count > 0 && lengths.back() == 0))
      fail(fmt::format("{} is no Huffman code", what));
    return lengths;
  }

  void read_clustered(CompressedTensor& tensor) {
    if (tensor.dtype != weights::Dtype::kF32 && tensor.dtype != weights::Dtype::kF16)
      fail(fmt::format("clustered tensor \"{}\" has another dtype than F32 and F16", tensor.name));
    tensor.index_bits = number<uint8_t>("the width of the indexes");
    if (tensor.index_bits < 1 || tensor.index_bits > kMaxIndexBits)
      fail(fmt::format("indexes of {} bits; 1 to {} are possible", tensor.index_bits, kMaxIndexBits));
    const auto codebook = number<uint16_t>("the size of the codebook");
    if (codebook == std::numeric_limits<uint16_t>::max()) fail("the codebook has more than 65534 values");
    const auto values = take(codebook * weights::row_of(tensor.dtype).bytes, "the codebook");
    tensor.values.assign(values.begin(), values.end());
    const auto entries = number<uint32_t>("the number of entries");
    const uint64_t span = uint64_t{1} << tensor.index_bits;
    const std::vector<uint8_t> distances = lengths(span, "the code of the distances");
    const std::vector<uint8_t> clusters = lengths(size_t{codebook} + 1, "the code of the clusters");
    const auto payload = number<uint32_t>("the size of the entries");
    const size_t begin = at_;
    const auto bytes = take(payload, "the entries");
    at_ = begin;
    // An entry takes two bits at least, and covers at most `span` elements.
    if (entries > 4 * uint64_t{payload})
      fail(fmt::format("{} entries do not fit into {} bytes", entries, payload));
    if (tensor.elements() >= (uint64_t{entries} + 1) * span)
      fail(fmt::format("{} entries do not cover the {} elements of tensor \"{}\"", entries, tensor.elements(),
                       tensor.name));
    read_entries(tensor, entries, HuffmanDecoder(distances), HuffmanDecoder(clusters), BitReader(bytes));
    at_ = begin + payload;
  }

  void read_entries(CompressedTensor& tensor, uint32_t entries, const HuffmanDecoder& distances,
                    const HuffmanDecoder& clusters, BitReader bits) {
    const uint64_t elements = tensor.elements();
    const uint64_t span = uint64_t{1} << tensor.index_bits;
    uint64_t next = 0;  // the place behind the last entry
    for (uint32_t i = 0; i < entries; ++i) {
      const auto distance = distances.next(bits);
      const auto cluster = clusters.next(bits);
      if (!distance || !cluster)
        fail(fmt::format("entry {} of tensor \"{}\" is cut or has no valid code", i, tensor.name));
      next += *distance + 1;
      if (next > elements)
        fail(fmt::format("entry {} lies behind the {} elements of tensor \"{}\"", i, elements, tensor.name));
      if (*cluster > 0) {
        tensor.positions.push_back(next - 1);
        tensor.clusters.push_back(static_cast<uint16_t>(*cluster - 1));
      } else if (*distance + 1 != span) {
        fail(
            fmt::format("entry {} of tensor \"{}\" is a padding zero with a short distance", i, tensor.name));
      }
    }
    if (elements - next >= span)
      fail(fmt::format("the entries of tensor \"{}\" end before its elements", tensor.name));
    if (bits.left() >= 8) fail(fmt::format("{} bits follow the last entry", bits.left()));
    while (bits.left() > 0) {
      if (bits.bit() != 0) fail("the unused bits behind the last entry are not 0");
    }
  }

  std::span<const std::byte> bytes_;
  const std::string& from_;
  size_t at_ = 0;
  uint64_t limit_ = 0;    // of the bytes of all decoded tensors
  uint64_t decoded_ = 0;  // bytes of the tensors so far, decoded
  std::set<std::string> names_;
};

}  // namespace

bool is_compressed(std::span<const std::byte> bytes) {
  return bytes.size() >= kCompressedMagic.size() &&
         std::memcmp(bytes.data(), kCompressedMagic.data(), kCompressedMagic.size()) == 0;
}

std::vector<CompressedTensor> parse_compressed(std::span<const std::byte> bytes, const std::string& from) {
  return Parser(bytes, from).file();
}

std::vector<std::byte> decoded(const CompressedTensor& tensor) {
  if (!tensor.clustered) return tensor.values;
  const size_t element = weights::row_of(tensor.dtype).bytes;
  std::vector<std::byte> bytes(tensor.bytes());
  for (size_t i = 0; i < tensor.positions.size(); ++i)
    std::memcpy(bytes.data() + tensor.positions[i] * element,
                tensor.values.data() + tensor.clusters[i] * element, element);
  return bytes;
}

}  // namespace starling
