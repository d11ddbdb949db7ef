#include "starling/compress/compressed_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "starling/base/error.h"

namespace starling {
namespace {

using testing::HasSubstr;
using Bytes = std::vector<std::byte>;

CompressedTensor dense(const std::string& name, weights::Dtype dtype, std::vector<int64_t> shape) {
  CompressedTensor tensor{.name = name, .dtype = dtype, .shape = std::move(shape)};
  tensor.values.assign(tensor.bytes(), std::byte{7});
  return tensor;
}

// A tensor of random weights, of which one in `rarity` remains.
CompressedTensor clustered(const std::string& name, std::vector<int64_t> shape, uint32_t rarity,
                           size_t codebook, std::mt19937& random) {
  CompressedTensor tensor{.name = name, .shape = std::move(shape), .clustered = true};
  std::vector<float> centroids(codebook);
  for (float& c : centroids) c = static_cast<float>(random()) / 1e9f - 2;
  tensor.values.resize(4 * codebook);
  std::memcpy(tensor.values.data(), centroids.data(), tensor.values.size());
  for (uint64_t e = 0; e < tensor.elements(); ++e) {
    if (random() % rarity != 0) continue;
    tensor.positions.push_back(e);
    tensor.clusters.push_back(static_cast<uint16_t>(random() % codebook));
  }
  return tensor;
}

// Returns the elements of a clustered fp32 tensor, one by one.
std::vector<float> by_definition(const CompressedTensor& tensor) {
  std::vector<float> elements(tensor.elements());
  for (size_t i = 0; i < tensor.positions.size(); ++i)
    std::memcpy(&elements[tensor.positions[i]], &tensor.values[4 * size_t{tensor.clusters[i]}], 4);
  return elements;
}

void expect_equal(const CompressedTensor& a, const CompressedTensor& b) {
  EXPECT_EQ(a.name, b.name);
  EXPECT_EQ(a.dtype, b.dtype);
  EXPECT_EQ(a.shape, b.shape);
  EXPECT_EQ(a.clustered, b.clustered);
  EXPECT_EQ(a.values, b.values);
  EXPECT_EQ(a.positions, b.positions);
  EXPECT_EQ(a.clusters, b.clusters);
}

std::vector<CompressedTensor> sample() {
  std::mt19937 random(8);
  return {dense("fc.bias", weights::Dtype::kF16, {10}), dense("n", weights::Dtype::kI64, {}),
          clustered("fc.weight", {10, 37}, 9, 5, random)};
}

// Puts the right checksum behind changed bytes.
Bytes sealed(Bytes bytes) {
  const uint64_t sum = compressed_checksum(std::span(bytes).first(bytes.size() - 8));
  std::memcpy(bytes.data() + bytes.size() - 8, &sum, 8);
  return bytes;
}

std::string refusal(const Bytes& bytes) {
  try {
    parse_compressed(bytes, "file");
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

TEST(CompressedFile, RandomTensorsComeBack) {
  std::mt19937 random(9);
  for (int i = 0; i < 60; ++i) {
    std::vector<CompressedTensor> tensors = {dense("a", weights::Dtype::kF32, {3, 2})};
    for (const char* name : {"b", "c"}) {
      const auto rows = static_cast<int64_t>(1 + random() % 40);
      const auto columns = static_cast<int64_t>(1 + random() % 60);
      const auto rarity = static_cast<uint32_t>(1 + random() % 300);
      tensors.push_back(clustered(name, {rows, columns}, rarity, 1 + random() % 300, random));
      tensors.back().index_bits = static_cast<int>(random() % 9);
    }
    std::vector<CompressedSize> sizes;
    const Bytes bytes = write_compressed(tensors, &sizes);
    const auto read = parse_compressed(bytes, "file");
    ASSERT_EQ(read.size(), tensors.size());
    uint64_t sum = 8 + 2 + 4 + 8;
    for (size_t t = 0; t < tensors.size(); ++t) {
      expect_equal(tensors[t], read[t]);
      sum += sizes[t].bytes;
      if (!tensors[t].clustered) continue;
      const std::vector<float> expected = by_definition(tensors[t]);
      const Bytes elements = decoded(read[t]);
      ASSERT_EQ(elements.size(), 4 * expected.size());
      EXPECT_EQ(std::memcmp(elements.data(), expected.data(), elements.size()), 0);
      EXPECT_EQ(read[t].index_bits, sizes[t].index_bits);
    }
    EXPECT_EQ(sum, bytes.size());
  }
}

TEST(CompressedFile, TheWidthOfTheIndexesIsThatOfTheFewestBytes) {
  std::mt19937 random(10);
  CompressedTensor tensor = clustered("w", {100, 100}, 20, 30, random);
  std::vector<CompressedSize> chosen;
  const size_t best = write_compressed({tensor}, &chosen).size();
  for (int bits = 1; bits <= 8; ++bits) {
    tensor.index_bits = bits;
    const size_t size = write_compressed({tensor}).size();
    EXPECT_LE(best, size + 1) << bits;  // the width is chosen by bits, and a file has whole bytes
    if (bits == chosen.front().index_bits) {
      EXPECT_EQ(size, best);
    }
  }
}

TEST(CompressedFile, EveryCutIsRefused) {
  const Bytes bytes = write_compressed(sample());
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_THAT(refusal(Bytes(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size))),
                HasSubstr("file: offset "))
        << size;
}

TEST(CompressedFile, EveryChangedByteIsRefusedByTheChecksum) {
  const Bytes bytes = write_compressed(sample());
  for (size_t at = 0; at < bytes.size(); ++at) {
    Bytes changed = bytes;
    changed[at] ^= std::byte{0x10};
    EXPECT_NE(refusal(changed), "") << at;
  }
  Bytes changed = bytes;
  changed[20] ^= std::byte{1};
  EXPECT_THAT(refusal(changed), HasSubstr("the checksum does not match"));
}

// Without the checksum, a changed byte must be refused or give tensors that the writer can write again.
TEST(CompressedFile, EveryChangedByteBehindARightChecksumIsReadOrRefused) {
  const Bytes bytes = write_compressed(sample());
  int read = 0;
  for (size_t at = 0; at + 8 < bytes.size(); ++at) {
    for (const int bit : {0, 3, 7}) {
      Bytes changed = bytes;
      changed[at] ^= std::byte{1} << bit;
      changed = sealed(changed);
      if (!refusal(changed).empty()) continue;
      ++read;
      const auto tensors = parse_compressed(changed, "file");
      const auto again = parse_compressed(write_compressed(tensors), "file");
      ASSERT_EQ(again.size(), tensors.size());
      for (size_t t = 0; t < tensors.size(); ++t) expect_equal(tensors[t], again[t]);
    }
  }
  EXPECT_GT(read, 0);
}

TEST(CompressedFile, MessagesNameThePlace) {
  const Bytes bytes = write_compressed({dense("a", weights::Dtype::kF32, {2})});
  // magic 8, version 2, count 4, then the length of the name at 14, "a", dtype at 17, kind 18, dims 19.
  const auto with = [&](size_t at, int value) {
    Bytes changed = bytes;
    changed[at] = static_cast<std::byte>(value);
    return refusal(sealed(changed));
  };
  EXPECT_THAT(with(0, 'X'), HasSubstr("file: offset 0: the file does not begin as"));
  EXPECT_THAT(with(8, 9), HasSubstr("offset 8: format version 9, and this Starling reads version 1; update"));
  EXPECT_THAT(with(13, 1), HasSubstr("offset 14: 16777217 tensors do not fit"));
  EXPECT_THAT(with(10, 0), HasSubstr("offset 14: 18 bytes follow the last tensor"));
  EXPECT_THAT(with(14, 99), HasSubstr("offset 16: truncated: the name of a tensor takes 99 bytes"));
  EXPECT_THAT(with(16, 0xff), HasSubstr("not UTF-8"));
  EXPECT_THAT(with(17, 10), HasSubstr("offset 18: dtype 10 does not exist"));
  EXPECT_THAT(with(18, 2), HasSubstr("kind 2 of tensor \"a\" does not exist"));
  EXPECT_THAT(with(19, 65), HasSubstr("has 65 dimensions"));
  EXPECT_THAT(with(23, 0xff), HasSubstr("tensor \"a\" is larger than"));
  EXPECT_THAT(with(20, 3), HasSubstr("truncated: a dense tensor takes 12 bytes, 8 are there"));
}

TEST(CompressedFile, FewBytesDoNotStandForManyElements) {
  CompressedTensor tensor{.name = "w", .shape = {200, 100}, .clustered = true};
  tensor.values.resize(4);
  tensor.positions = {0};
  tensor.clusters = {0};
  const Bytes bytes = write_compressed({tensor});
  EXPECT_EQ(parse_compressed(bytes, "file").front().positions.size(), 1);
  Bytes larger = bytes;
  larger[21] = std::byte{0x40};  // the second byte of the first size
  EXPECT_THAT(refusal(sealed(larger)), HasSubstr("do not cover the"));
}

TEST(CompressedFile, TheWriterRefusesWhatItCannotStore) {
  std::mt19937 random(11);
  EXPECT_THROW(write_compressed({dense("", weights::Dtype::kF32, {1})}), ConfigError);
  EXPECT_THROW(
      write_compressed({dense("a", weights::Dtype::kF32, {1}), dense("a", weights::Dtype::kF32, {1})}),
      ConfigError);
  CompressedTensor tensor = clustered("w", {10, 10}, 3, 4, random);
  tensor.dtype = weights::Dtype::kF64;
  EXPECT_THROW(write_compressed({tensor}), ConfigError);
  tensor.dtype = weights::Dtype::kF32;
  tensor.index_bits = 9;
  EXPECT_THROW(write_compressed({tensor}), ConfigError);
  tensor.index_bits = -1;
  EXPECT_THROW(write_compressed({tensor}), ConfigError);
  tensor.index_bits = 0;
  tensor.positions.back() = 100;
  EXPECT_THROW(write_compressed({tensor}), ConfigError);
}

// 2 GiB of zeros and one weight: the parser would refuse the file.
TEST(CompressedFile, TheWriterKeepsTheLimitOfTheParser) {
  CompressedTensor tensor{.name = "w", .shape = {1 << 14, 1 << 15}, .clustered = true};
  tensor.values.resize(4);
  tensor.positions = {0};
  tensor.clusters = {0};
  tensor.index_bits = 8;
  EXPECT_THROW(write_compressed({tensor}), ConfigError);
  tensor.shape = {1 << 12, 1 << 15};  // 512 MiB
  EXPECT_EQ(refusal(write_compressed({tensor})), "");
}

// The last entry of a tensor leaves unused bits, which must be 0.
TEST(CompressedFile, UnusedBitsMustBeZero) {
  CompressedTensor tensor{.name = "w", .shape = {3}, .clustered = true};
  tensor.values.resize(4);
  tensor.positions = {1};
  tensor.clusters = {0};
  tensor.index_bits = 2;
  Bytes bytes = write_compressed({tensor});
  ASSERT_EQ(refusal(bytes), "");
  bytes[bytes.size() - 9] |= std::byte{1};  // the last byte before the checksum
  EXPECT_THAT(refusal(sealed(bytes)), HasSubstr("the unused bits behind the last entry are not 0"));
}

}  // namespace
}  // namespace starling
