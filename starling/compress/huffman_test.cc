#include "starling/compress/huffman.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>
#include <set>

namespace starling {
namespace {

// Returns the number of bits of an optimal code: the sum of all inner nodes of the tree.
uint64_t bits_by_definition(const std::vector<uint64_t>& counts) {
  std::multiset<uint64_t> nodes;
  for (const uint64_t count : counts) {
    if (count > 0) nodes.insert(count);
  }
  if (nodes.size() == 1) return *nodes.begin();
  uint64_t bits = 0;
  while (nodes.size() > 1) {
    const uint64_t a = *nodes.begin();
    nodes.erase(nodes.begin());
    const uint64_t b = *nodes.begin();
    nodes.erase(nodes.begin());
    nodes.insert(a + b);
    bits += a + b;
  }
  return bits;
}

double entropy(const std::vector<uint64_t>& counts) {
  const double total = static_cast<double>(std::accumulate(counts.begin(), counts.end(), uint64_t{0}));
  double h = 0;
  for (const uint64_t count : counts) {
    if (count > 0) h -= static_cast<double>(count) / total * std::log2(static_cast<double>(count) / total);
  }
  return h;
}

std::vector<uint64_t> random_counts(std::mt19937& random) {
  std::vector<uint64_t> counts(1 + random() % 300);
  const uint32_t most = 1u << random() % 20;
  for (uint64_t& count : counts) count = random() % 4 == 0 ? 0 : random() % most;
  counts[random() % counts.size()] += 1;
  return counts;
}

TEST(Huffman, MeanLengthIsOptimalAndWithinABitOfTheEntropy) {
  std::mt19937 random(1);
  for (int i = 0; i < 500; ++i) {
    const std::vector<uint64_t> counts = random_counts(random);
    const std::vector<uint8_t> lengths = huffman_lengths(counts);
    ASSERT_TRUE(is_huffman_code(lengths));
    for (size_t s = 0; s < counts.size(); ++s) EXPECT_EQ(lengths[s] > 0, counts[s] > 0);
    EXPECT_EQ(huffman_bits(counts, lengths), bits_by_definition(counts));
    const auto total = static_cast<double>(std::accumulate(counts.begin(), counts.end(), uint64_t{0}));
    const double mean = static_cast<double>(huffman_bits(counts, lengths)) / total;
    const double h = entropy(counts);
    EXPECT_GE(mean, h - 1e-9);
    if (h > 0) {
      EXPECT_LT(mean, h + 1);
    } else {
      EXPECT_EQ(mean, 1);
    }
  }
}

TEST(Huffman, RandomTextsComeBack) {
  std::mt19937 random(2);
  for (int i = 0; i < 100; ++i) {
    const std::vector<uint64_t> counts = random_counts(random);
    std::discrete_distribution<uint32_t> draw(counts.begin(), counts.end());
    const std::vector<uint8_t> lengths = huffman_lengths(counts);
    const HuffmanEncoder encoder(lengths);
    const HuffmanDecoder decoder(lengths);
    std::vector<uint32_t> text(random() % 1000);
    BitWriter out;
    uint64_t bits = 0;
    for (uint32_t& symbol : text) {
      do symbol = draw(random);
      while (counts[symbol] == 0);
      encoder.put(out, symbol);
      bits += lengths[symbol];
    }
    EXPECT_EQ(out.bits(), bits);
    EXPECT_EQ(out.bytes().size(), (bits + 7) / 8);
    BitReader in(out.bytes());
    for (const uint32_t symbol : text) EXPECT_EQ(decoder.next(in), symbol);
    EXPECT_LT(in.left(), 8);
  }
}

TEST(Huffman, NoCodeIsAPrefixOfAnother) {
  const std::vector<uint64_t> counts = {50, 1, 0, 7, 7, 20, 3};
  const std::vector<uint8_t> lengths = huffman_lengths(counts);
  const HuffmanDecoder decoder(lengths);
  const HuffmanEncoder encoder(lengths);
  for (size_t a = 0; a < counts.size(); ++a) {
    if (counts[a] == 0) continue;
    BitWriter out;
    encoder.put(out, a);
    for (const std::byte filling : {std::byte{0}, std::byte{0xff}}) {  // whatever follows the code
      std::vector<std::byte> bytes = out.bytes();
      bytes.back() |= filling & static_cast<std::byte>(0xff >> (out.bits() % 8 == 0 ? 8 : out.bits() % 8));
      bytes.push_back(filling);
      BitReader in(bytes);
      EXPECT_EQ(decoder.next(in), a);
    }
  }
}

TEST(Huffman, VeryUnequalCountsGiveCodesOfAtMost31Bits) {
  std::vector<uint64_t> counts = {1, 1};  // Fibonacci numbers give the deepest tree
  while (counts.size() < 60) counts.push_back(counts[counts.size() - 1] + counts[counts.size() - 2]);
  const std::vector<uint8_t> lengths = huffman_lengths(counts);
  EXPECT_TRUE(is_huffman_code(lengths));
  EXPECT_LE(*std::max_element(lengths.begin(), lengths.end()), kMaxCodeBits);
}

TEST(Huffman, WhatIsNoCode) {
  const auto is_code = [](const std::vector<uint8_t>& lengths) { return is_huffman_code(lengths); };
  EXPECT_TRUE(is_code({}));
  EXPECT_TRUE(is_code({0, 0}));
  EXPECT_TRUE(is_code({0, 1}));
  EXPECT_TRUE(is_code({1, 2, 2}));
  EXPECT_FALSE(is_code({2}));           // one symbol has one bit
  EXPECT_FALSE(is_code({1, 2}));        // not complete
  EXPECT_FALSE(is_code({1, 1, 1}));     // too many
  EXPECT_FALSE(is_code({1, 1, 32}));    // too long
  EXPECT_FALSE(is_code({2, 2, 2, 1}));  // more than complete
}

TEST(Huffman, ADecoderEndsWhereTheBitsEnd) {
  const HuffmanDecoder decoder(std::vector<uint8_t>{1, 2, 3, 3});
  const std::vector<std::byte> bytes = {std::byte{0xff}};  // 111 111 11
  BitReader in(bytes);
  EXPECT_EQ(decoder.next(in), 3);
  EXPECT_EQ(decoder.next(in), 3);
  EXPECT_EQ(decoder.next(in), std::nullopt);
  const HuffmanDecoder one(std::vector<uint8_t>{0, 1});
  BitReader again(bytes);
  EXPECT_EQ(one.next(again), std::nullopt);  // 1 is no code
}

}  // namespace
}  // namespace starling
