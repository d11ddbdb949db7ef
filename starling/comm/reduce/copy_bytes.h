// A memcpy for ranges that may be empty.
#pragma once

#include <cstddef>
#include <cstring>

namespace starling {

// Copies `bytes` bytes. If `bytes` is 0, the pointers may be null.
inline void copy_bytes(void* to, const void* from, size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

}  // namespace starling
