// A hash that finds damage of a file. It is no protection against a stranger who can compute it, too.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "starling/base/keyed_random.h"

namespace starling {

// Returns the hash of `bytes`, in the byte order of the machine. Checkpoints store it, so it must not change.
inline uint64_t hash_bytes(std::string_view bytes) {
  uint64_t hash = kGolden + bytes.size();
  for (size_t i = 0; i < bytes.size(); i += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, std::min(sizeof(word), bytes.size() - i));
    hash = mix64(hash + kGolden + word);
  }
  return hash;
}

}  // namespace starling
