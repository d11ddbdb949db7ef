// Computes a permutation of 0 … n - 1 without a table. It applies a balanced Feistel network on the smallest
// even number of bits that holds n, but on at least 8 bits. It repeats the network until the result is less
// than n (Black and Rogaway, Ciphers with Arbitrary Finite Domains, 2002). For n > 64, the domain is smaller
// than 4 n, so the mean number of repetitions is less than four.
#include "starling/base/check.h"
#include "starling/data/loader.h"
#include "starling/data/random.h"

namespace starling {
namespace {

constexpr int kRounds = 8;
constexpr int kMinHalfBits = 4;  // halves of one or two bits would mix badly

uint64_t feistel(uint64_t x, int half_bits, uint64_t key) {
  const uint64_t mask = (uint64_t{1} << half_bits) - 1;
  uint64_t left = x >> half_bits;
  uint64_t right = x & mask;
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t mixed = mix64(key + kGolden * static_cast<uint64_t>(round + 1) + mix64(right + kGolden));
    const uint64_t next = left ^ (mixed & mask);
    left = right;
    right = next;
  }
  return (left << half_bits) | right;
}

}  // namespace

int64_t sample_at(uint64_t seed, int64_t epoch, int64_t position, int64_t size, Order order) {
  STARLING_CHECK(position >= 0 && position < size, "position {} does not exist: there are {}", position,
                 size);
  if (order == Order::kSequential) return position;
  int half_bits = kMinHalfBits;
  while (half_bits < 31 && (uint64_t{1} << (2 * half_bits)) < static_cast<uint64_t>(size)) ++half_bits;
  const uint64_t key = key_of(seed, static_cast<uint64_t>(epoch), 0x6F72646572ULL);
  uint64_t x = static_cast<uint64_t>(position);
  do {
    x = feistel(x, half_bits, key);
  } while (x >= static_cast<uint64_t>(size));
  return static_cast<int64_t>(x);
}

}  // namespace starling
