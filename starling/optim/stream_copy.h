// Copies that bypass the caches: they do not read the destination first (no read for ownership) and evict
// nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace starling {

// Copies like memcpy. `from` and `to` must not overlap. Other threads see the bytes in order only after
// stream_fence().
inline __attribute__((always_inline)) void stream_copy(void* to, const void* from, size_t bytes) {
#if defined(__SSE2__)
  auto* out = static_cast<std::byte*>(to);
  const auto* in = static_cast<const std::byte*>(from);
  size_t head = (64 - (reinterpret_cast<uintptr_t>(out) & 63)) & 63;
  if (head > bytes) head = bytes;
  std::memcpy(out, in, head);
  out += head, in += head, bytes -= head;
  for (; bytes >= 64; out += 64, in += 64, bytes -= 64) {
    for (int k = 0; k < 64; k += 16) {
      const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + k));
      _mm_stream_si128(reinterpret_cast<__m128i*>(out + k), x);
    }
  }
  std::memcpy(out, in, bytes);
#else
  std::memcpy(to, from, bytes);
#endif
}

// Orders all earlier stream_copy() writes of this thread before its later writes.
inline __attribute__((always_inline)) void stream_fence() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

}  // namespace starling
