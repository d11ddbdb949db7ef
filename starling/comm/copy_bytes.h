// memcpy for ranges that may be empty, whose pointers may then be null.
#pragma once

#include <cstddef>
#include <cstring>

namespace starling {

inline void copy_bytes(void* to, const void* from, size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

}  // namespace starling
