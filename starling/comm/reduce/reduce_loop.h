// The reduction loop, which dispatch() (base/isa_dispatch.h) compiles once for each instruction set. The
// compiler maps the vectors of 64 bytes below to the vectors of that instruction set. Only reduce_kernels.cc
// includes this file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "starling/base/isa_dispatch.h"
#include "starling/comm/reduce/reduce_kernels.h"

// The functions below exchange vectors by value and are all inlined, so no ABI applies to these vectors.
#pragma GCC diagnostic ignored "-Wpsabi"

namespace starling::reduce_loop {

template <typename E, int N>
struct VectorOf {
  typedef E type __attribute__((vector_size(N * sizeof(E))));
};
template <typename E, int N>
using Vector = typename VectorOf<E, N>::type;

typedef Vector<float, 16> F16;
typedef Vector<int32_t, 16> I16;
typedef Vector<uint32_t, 16> U16;

// PlainLane loads and stores blocks of kCount elements at any alignment.
template <typename E, int N>
struct PlainLane {
  using Wide = Vector<E, N>;
  static constexpr size_t kCount = N;
  static constexpr size_t kBytes = N * sizeof(E);
  STARLING_INLINE static Wide load(const std::byte* p) {
    Wide v;
    __builtin_memcpy(&v, p, kBytes);
    return v;
  }
  STARLING_INLINE static Vector<E, N> narrow(const Wide& v) { return v; }
};

// ShortLane accumulates 8- and 16-bit integers in 32 bits.
template <typename E>
struct ShortLane {
  using Wide = I16;
  static constexpr size_t kCount = 16;
  static constexpr size_t kBytes = 16 * sizeof(E);
  STARLING_INLINE static Wide load(const std::byte* p) {
    Vector<E, 16> v;
    __builtin_memcpy(&v, p, kBytes);
    return __builtin_convertvector(v, I16);
  }
  STARLING_INLINE static Vector<E, 16> narrow(const Wide& v) {
    return __builtin_convertvector(v, Vector<E, 16>);
  }
};

struct Bf16Lane {
  using Wide = F16;
  static constexpr size_t kCount = 16;
  static constexpr size_t kBytes = 32;
  STARLING_INLINE static Wide load(const std::byte* p) {
    Vector<uint16_t, 16> v;
    __builtin_memcpy(&v, p, kBytes);
    return (F16)(__builtin_convertvector(v, U16) << 16);
  }
  STARLING_INLINE static Vector<uint16_t, 16> narrow(const Wide& f) {
    const U16 bits = (U16)f;
    const U16 rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const U16 quiet = (bits >> 16) | 0x40u;
    return __builtin_convertvector((f != f) ? quiet : rounded, Vector<uint16_t, 16>);
  }
};

// Fp16Lane converts fp16 by integer arithmetic and one exact floating-point step for subnormal numbers.
// The result is therefore the same with and without F16C.
struct Fp16Lane {
  using Wide = F16;
  static constexpr size_t kCount = 16;
  static constexpr size_t kBytes = 32;
  STARLING_INLINE static Wide load(const std::byte* p) {
    Vector<uint16_t, 16> v;
    __builtin_memcpy(&v, p, kBytes);
    const U16 half = __builtin_convertvector(v, U16);
    const U16 shifted = (half & 0x7fffu) << 13;
    const U16 exponent = shifted & 0x0f800000u;
    const U16 normal = shifted + 0x38000000u;
    const U16 special = normal + 0x38000000u;  // for infinity and NaN: exponent 255
    const F16 small = (F16)(normal + 0x00800000u) - (F16)(U16{} + 0x38800000u);
    U16 bits = (exponent == U16{}) ? (U16)small : normal;
    bits = (exponent == (U16{} + 0x0f800000u)) ? special : bits;
    return (F16)(bits | ((half & 0x8000u) << 16));
  }
  STARLING_INLINE static Vector<uint16_t, 16> narrow(const Wide& f) {
    const U16 all = (U16)f;
    const U16 sign = all & 0x80000000u;
    const U16 bits = all ^ sign;
    // A number that is too large for fp16 becomes infinity. NaN stays NaN.
    const U16 large = (bits > (U16{} + 0x7f800000u)) ? (U16{} + 0x7e00u) : (U16{} + 0x7c00u);
    // The number is subnormal in fp16. Adding 0.5 aligns the ten bits at the bottom and rounds to nearest
    // even.
    const F16 aligned = (F16)bits + (F16)(U16{} + 0x3f000000u);
    const U16 tiny = (U16)aligned - 0x3f000000u;
    const U16 normal = (bits + 0xc8000fffu + ((bits >> 13) & 1u)) >> 13;
    U16 half = (bits < (U16{} + 0x38800000u)) ? tiny : normal;
    half = (bits >= (U16{} + 0x47800000u)) ? large : half;
    return __builtin_convertvector(half | (sign >> 16), Vector<uint16_t, 16>);
  }
};

// Integer vectors add and multiply as unsigned vectors, so that a signed overflow wraps around.
template <typename W>
struct Wrapping {
  using type = W;
};
template <>
struct Wrapping<I16> {
  using type = U16;
};
template <>
struct Wrapping<Vector<int64_t, 8>> {
  using type = Vector<uint64_t, 8>;
};

struct Sum {
  template <typename W>
  STARLING_INLINE static W apply(const W& a, const W& b) {
    using U = typename Wrapping<W>::type;
    return (W)((U)a + (U)b);
  }
};
struct Product {
  template <typename W>
  STARLING_INLINE static W apply(const W& a, const W& b) {
    using U = typename Wrapping<W>::type;
    return (W)((U)a * (U)b);
  }
};
struct Min {
  template <typename W>
  STARLING_INLINE static W apply(const W& a, const W& b) {
    return ((b < a) | (b != b)) ? b : a;  // NOLINT(misc-redundant-expression): finds NaN
  }
};
struct Max {
  template <typename W>
  STARLING_INLINE static W apply(const W& a, const W& b) {
    return ((b > a) | (b != b)) ? b : a;  // NOLINT(misc-redundant-expression): finds NaN
  }
};

struct BitAnd {
  template <typename W>
  STARLING_INLINE static W apply(const W& a, const W& b) {
    return a & b;
  }
};
struct BitOr {
  template <typename W>
  STARLING_INLINE static W apply(const W& a, const W& b) {
    return a | b;
  }
};
struct BitXor {
  template <typename W>
  STARLING_INLINE static W apply(const W& a, const W& b) {
    return a ^ b;
  }
};

// Divides by the divisor. The inverse of a power of two is exact, so the product with it has the bits of the
// quotient and is faster than a division. Only a sum has a divisor other than 1.
template <typename Op, typename W>
STARLING_INLINE W divide(const W& sum, int divisor) {
  if constexpr (!std::is_same_v<Op, Sum>) return sum;
  using Element = std::remove_cvref_t<decltype(sum[0])>;
  if (divisor == 1) return sum;
  if constexpr (std::is_floating_point_v<Element>) {
    if ((divisor & (divisor - 1)) == 0) return sum * (W{} + Element{1} / static_cast<Element>(divisor));
  }
  return sum / (W{} + static_cast<Element>(divisor));
}

template <typename Lane, typename Op, int P>
STARLING_INLINE typename Lane::Wide reduce_block(const void* const* sources, int p, size_t offset,
                                                 int divisor) {
  typename Lane::Wide sum = Lane::load(static_cast<const std::byte*>(sources[0]) + offset);
  const int n = P > 0 ? P : p;
  for (int s = 1; s < n; ++s) {
    sum = Op::apply(sum, Lane::load(static_cast<const std::byte*>(sources[s]) + offset));
  }
  return divide<Op>(sum, divisor);
}

template <typename V>
STARLING_INLINE void stream_store(std::byte* to, const V& v) {
#if defined(__x86_64__)
  for (size_t i = 0; i < sizeof(V); i += 16) {
    __m128i part;
    __builtin_memcpy(&part, reinterpret_cast<const std::byte*>(&v) + i, 16);
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + i), part);
  }
#else
  __builtin_memcpy(to, &v, sizeof(V));
#endif
}

// Reduces the last, incomplete block with the same arithmetic, through copies that are filled with zeros.
template <typename Lane, typename Op>
STARLING_INLINE void reduce_tail(const Reduction& job, size_t offset, size_t bytes) {
  const int p = static_cast<int>(job.sources.size());
  std::byte padded[Lane::kBytes] = {};
  const void* one = padded;
  __builtin_memcpy(padded, static_cast<const std::byte*>(job.sources[0]) + offset, bytes);
  typename Lane::Wide sum = reduce_block<Lane, Op, 1>(&one, 1, 0, p == 1 ? job.divisor : 1);
  for (int s = 1; s < p; ++s) {
    __builtin_memcpy(padded, static_cast<const std::byte*>(job.sources[s]) + offset, bytes);
    sum = Op::apply(sum, Lane::load(padded));
  }
  if (p > 1) sum = divide<Op>(sum, job.divisor);
  const auto narrow = Lane::narrow(sum);
  for (void* to : job.destinations) __builtin_memcpy(static_cast<std::byte*>(to) + offset, &narrow, bytes);
}

// Calls block(at) for every at < bytes in steps of kStep. If `two_pages`, it works on two pages side by side.
template <size_t kStep, typename Block>
STARLING_INLINE void side_by_side(bool two_pages, size_t bytes, const Block& block) {
  constexpr size_t kPage = 4096;
  size_t at = 0;
  const size_t paired = two_pages ? bytes / (2 * kPage) * (2 * kPage) : 0;
  for (; at < paired; at += 2 * kPage) {
    for (size_t in_page = 0; in_page < kPage; in_page += kStep) {
      block(at + in_page);
      block(at + kPage + in_page);
    }
  }
  for (; at < bytes; at += kStep) block(at);
}

// Reduces two sources to one or two destinations. The addresses are local variables that stay in registers,
// because the compiler must assume that a store of bytes changes an array of addresses.
template <typename Lane, typename Op>
STARLING_INLINE void reduce_two(const Reduction& job, size_t bytes) {
  const void* const sources[2] = {job.sources[0], job.sources[1]};
  auto* const first = static_cast<std::byte*>(job.destinations.front());
  auto* const last = static_cast<std::byte*>(job.destinations.back());
  const int divisor = job.divisor;
  side_by_side<Lane::kBytes>(job.pages_side_by_side, bytes, [&](size_t at) STARLING_INLINE_LAMBDA {
    const auto v = Lane::narrow(reduce_block<Lane, Op, 2>(sources, 2, at, divisor));
    __builtin_memcpy(first + at, &v, Lane::kBytes);
    if (last != first) __builtin_memcpy(last + at, &v, Lane::kBytes);
  });
}

// Two pages side by side are used for at most this many sources. More streams at equal places of their pages
// would evict each other from the first-level cache.
constexpr int kSideBySide = 4;

// Reduces P sources, or any number of them if P is 0. P is 2 for at most two destinations only. Sums, which
// training needs, have loops that write around the caches and loops that work on two pages side by side.
// Every other operation has one plain loop, because each further loop is compiled for nine types and three
// instruction sets.
template <typename Lane, typename Op, int P>
STARLING_INLINE void reduce_all(const Reduction& job) {
  const void* const* sources = job.sources.data();
  void* const* destinations = job.destinations.data();
  const int p = P > 0 ? P : static_cast<int>(job.sources.size());
  const int q = static_cast<int>(job.destinations.size());
  const size_t whole = job.count / Lane::kCount * Lane::kBytes;
  const size_t rest = job.count % Lane::kCount * (Lane::kBytes / Lane::kCount);
  const auto reduced = [&](size_t at) STARLING_INLINE_LAMBDA {
    return Lane::narrow(reduce_block<Lane, Op, P>(sources, p, at, job.divisor));
  };
  const auto block = [&](size_t at) STARLING_INLINE_LAMBDA {
    const auto v = reduced(at);
    for (int d = 0; d < q; ++d) {
      __builtin_memcpy(static_cast<std::byte*>(destinations[d]) + at, &v, Lane::kBytes);
    }
  };
  if constexpr (!std::is_same_v<Op, Sum>) {
    for (size_t at = 0; at < whole; at += Lane::kBytes) block(at);
  } else if (job.stream) {
    for (size_t at = 0; at < whole; at += Lane::kBytes) {
      const auto v = reduced(at);
      for (int d = 0; d < q; ++d) stream_store(static_cast<std::byte*>(destinations[d]) + at, v);
    }
#if defined(__x86_64__)
    _mm_sfence();
#endif
  } else if constexpr (P == 2) {
    reduce_two<Lane, Op>(job, whole);
  } else {
    side_by_side<Lane::kBytes>(job.pages_side_by_side && p <= kSideBySide, whole, block);
  }
  if (rest > 0) reduce_tail<Lane, Op>(job, whole, rest);
}

}  // namespace starling::reduce_loop
