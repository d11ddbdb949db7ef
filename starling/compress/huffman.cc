#include "starling/compress/huffman.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>
#include <tuple>

namespace starling {
namespace {

// Returns the depth of each leaf of the Huffman tree. All counts are above 0, and there are at least two.
std::vector<int> depths_of(const std::vector<uint64_t>& counts) {
  const size_t leaves = counts.size();
  // A node of the queue: its count and its number. The number decides between equal counts.
  using Node = std::pair<uint64_t, size_t>;
  std::priority_queue<Node, std::vector<Node>, std::greater<>> open;
  for (size_t i = 0; i < leaves; ++i) open.emplace(counts[i], i);
  std::vector<size_t> parent(2 * leaves - 1);
  for (size_t node = leaves; node < parent.size(); ++node) {
    const auto [a, first] = open.top();
    open.pop();
    const auto [b, second] = open.top();
    open.pop();
    parent[first] = parent[second] = node;
    open.emplace(a + b, node);
  }
  std::vector<int> depth(parent.size());
  for (size_t node = parent.size() - 1; node-- > 0;) depth[node] = depth[parent[node]] + 1;
  depth.resize(leaves);
  return depth;
}

// Returns the symbols that have a code, in the order of their codes.
std::vector<uint32_t> in_code_order(std::span<const uint8_t> lengths) {
  std::vector<uint32_t> symbols;
  for (size_t s = 0; s < lengths.size(); ++s) {
    if (lengths[s] > 0) symbols.push_back(static_cast<uint32_t>(s));
  }
  std::stable_sort(symbols.begin(), symbols.end(),
                   [&](uint32_t a, uint32_t b) { return lengths[a] < lengths[b]; });
  return symbols;
}

}  // namespace

std::vector<uint8_t> huffman_lengths(std::span<const uint64_t> counts) {
  std::vector<uint8_t> lengths(counts.size());
  std::vector<size_t> symbols;
  std::vector<uint64_t> present;
  for (size_t s = 0; s < counts.size(); ++s) {
    if (counts[s] == 0) continue;
    symbols.push_back(s);
    present.push_back(counts[s]);
  }
  if (symbols.size() == 1) lengths[symbols.front()] = 1;
  if (symbols.size() < 2) return lengths;
  std::vector<int> depths = depths_of(present);
  while (*std::max_element(depths.begin(), depths.end()) > kMaxCodeBits) {
    for (uint64_t& count : present) count = (count + 1) / 2;  // less unequal, so that the tree is flatter
    depths = depths_of(present);
  }
  for (size_t i = 0; i < symbols.size(); ++i) lengths[symbols[i]] = static_cast<uint8_t>(depths[i]);
  return lengths;
}

bool is_huffman_code(std::span<const uint8_t> lengths) {
  uint64_t filled = 0;  // in units of the longest code
  uint64_t symbols = 0;
  uint64_t ones = 0;
  for (const uint8_t length : lengths) {
    if (length > kMaxCodeBits) return false;
    if (length == 0) continue;
    filled += uint64_t{1} << (kMaxCodeBits - length);
    ++symbols;
    if (length == 1) ++ones;
  }
  return symbols == 0 || (symbols == 1 && ones == 1) || filled == uint64_t{1} << kMaxCodeBits;
}

uint64_t huffman_bits(std::span<const uint64_t> counts, std::span<const uint8_t> lengths) {
  return std::inner_product(counts.begin(), counts.end(), lengths.begin(), uint64_t{0});
}

HuffmanEncoder::HuffmanEncoder(std::span<const uint8_t> lengths)
    : lengths_(lengths.begin(), lengths.end()), codes_(lengths.size()) {
  uint32_t code = 0;
  int before = 0;
  for (const uint32_t symbol : in_code_order(lengths)) {
    code <<= lengths[symbol] - before;
    before = lengths[symbol];
    codes_[symbol] = code++;
  }
}

HuffmanDecoder::HuffmanDecoder(std::span<const uint8_t> lengths) : symbols_(in_code_order(lengths)) {
  for (const uint32_t symbol : symbols_) ++count_[lengths[symbol]];
}

std::optional<uint32_t> HuffmanDecoder::next(BitReader& in) const {
  uint64_t code = 0;   // the bits so far
  uint64_t first = 0;  // the first code of this length
  size_t index = 0;    // of the symbol that has the code `first`
  for (int length = 1; length <= kMaxCodeBits && in.left() > 0; ++length) {
    code = code << 1 | in.bit();
    first <<= 1;
    const uint64_t count = count_[static_cast<size_t>(length)];
    if (code < first + count) return symbols_[index + (code - first)];
    index += count;
    first += count;
  }
  return std::nullopt;
}

}  // namespace starling
