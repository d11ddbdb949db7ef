#include "starling/comm/reduce/reduce_kernels.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "starling/base/bfloat16.h"
#include "starling/base/check.h"
#include "starling/comm/reduce/reduce_loop.h"

namespace starling {

bool two_pages_at_once() {
#if defined(__x86_64__)
  static const bool intel = __builtin_cpu_is("intel");
  return intel;
#else
  return false;
#endif
}

namespace {

// Turns kAvg into a sum with a divisor. Turns streaming off if a destination is not aligned for it.
Reduction prepared(const Reduction& job) {
  STARLING_CHECK(!job.sources.empty(), "a reduction needs a source");
  STARLING_CHECK(!is_bitwise(job.op) || !is_floating(job.type), "a bitwise reduction of {} is not defined",
                 name_of(job.type));
  Reduction out = job;
  if (job.op == ReduceOp::kAvg) {
    out.op = ReduceOp::kSum;
    out.divisor = static_cast<int>(job.sources.size());
  } else if (job.op != ReduceOp::kSum) {
    out.divisor = 1;
  }
  for (const void* to : job.destinations) {
    if (reinterpret_cast<uintptr_t>(to) % 64 != 0) out.stream = false;
  }
  return out;
}

template <typename T>
T naive_apply(ReduceOp op, T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if (op == ReduceOp::kMin || op == ReduceOp::kMax) {
      if (std::isnan(b) || std::isnan(a)) return std::isnan(b) ? b : a;
    }
  }
  switch (op) {
    case ReduceOp::kMin:
      return b < a ? b : a;
    case ReduceOp::kMax:
      return b > a ? b : a;
    default:
      break;
  }
  if constexpr (std::is_integral_v<T>) {
    if (op == ReduceOp::kBitAnd) return a & b;
    if (op == ReduceOp::kBitOr) return a | b;
    if (op == ReduceOp::kBitXor) return a ^ b;
    using U = std::make_unsigned_t<T>;
    const U x = static_cast<U>(a), y = static_cast<U>(b);
    return static_cast<T>(op == ReduceOp::kProduct ? x * y : x + y);
  } else {
    return op == ReduceOp::kProduct ? a * b : a + b;
  }
}

// `Stored` is the type of an element in memory. `Wide` is the type in which it is accumulated.
template <typename Stored, typename Wide, typename Widen, typename Narrow>
void naive_loop(const Reduction& job, Widen widen, Narrow narrow) {
  for (size_t i = 0; i < job.count; ++i) {
    Wide sum{};
    for (size_t s = 0; s < job.sources.size(); ++s) {
      Stored x;
      std::memcpy(&x, static_cast<const Stored*>(job.sources[s]) + i, sizeof(x));
      sum = s == 0 ? Wide(widen(x)) : naive_apply<Wide>(job.op, sum, Wide(widen(x)));
    }
    if (job.divisor != 1) sum = static_cast<Wide>(sum / static_cast<Wide>(job.divisor));
    const Stored y = narrow(sum);
    for (void* to : job.destinations) std::memcpy(static_cast<Stored*>(to) + i, &y, sizeof(y));
  }
}

template <typename Stored, typename Wide = Stored>
void naive_plain(const Reduction& job) {
  naive_loop<Stored, Wide>(job, [](Stored x) { return x; }, [](Wide x) { return static_cast<Stored>(x); });
}

}  // namespace

namespace reduce_loop {
namespace {

template <typename Lane, typename Op, int P>
void reduce_with(const Reduction& job, Isa isa) {
  dispatch(isa, [&job]() STARLING_INLINE_LAMBDA { reduce_all<Lane, Op, P>(job); });
}

// Reduces elements of one type. prepared() has replaced kAvg. Only sums have loops for two sources.
template <typename Lane>
void reduce_lane(const Reduction& job, Isa isa) {
  using Element = std::remove_reference_t<decltype(typename Lane::Wide{}[0])>;
  if constexpr (std::is_integral_v<Element>) {
    if (job.op == ReduceOp::kBitAnd) return reduce_with<Lane, BitAnd, 0>(job, isa);
    if (job.op == ReduceOp::kBitOr) return reduce_with<Lane, BitOr, 0>(job, isa);
    if (job.op == ReduceOp::kBitXor) return reduce_with<Lane, BitXor, 0>(job, isa);
  }
  switch (job.op) {
    case ReduceOp::kMin:
      return reduce_with<Lane, Min, 0>(job, isa);
    case ReduceOp::kMax:
      return reduce_with<Lane, Max, 0>(job, isa);
    case ReduceOp::kProduct:
      return reduce_with<Lane, Product, 0>(job, isa);
    default:
      if (job.sources.size() == 2 && job.destinations.size() <= 2) return reduce_with<Lane, Sum, 2>(job, isa);
      return reduce_with<Lane, Sum, 0>(job, isa);
  }
}

}  // namespace
}  // namespace reduce_loop

void reduce(const Reduction& job, Isa isa) {
  using namespace reduce_loop;
  const Reduction ready = prepared(job);
  if (ready.count == 0) return;
  switch (ready.type) {
    case DataType::kFp32:
      return reduce_lane<PlainLane<float, 16>>(ready, isa);
    case DataType::kFp64:
      return reduce_lane<PlainLane<double, 8>>(ready, isa);
    case DataType::kBf16:
      return reduce_lane<Bf16Lane>(ready, isa);
    case DataType::kFp16:
      return reduce_lane<Fp16Lane>(ready, isa);
    case DataType::kInt8:
      return reduce_lane<ShortLane<int8_t>>(ready, isa);
    case DataType::kUint8:
      return reduce_lane<ShortLane<uint8_t>>(ready, isa);
    case DataType::kInt16:
      return reduce_lane<ShortLane<int16_t>>(ready, isa);
    case DataType::kInt32:
      return reduce_lane<PlainLane<int32_t, 16>>(ready, isa);
    case DataType::kInt64:
      return reduce_lane<PlainLane<int64_t, 8>>(ready, isa);
  }
}

void reduce_naive(const Reduction& job) {
  const Reduction ready = prepared(job);
  switch (ready.type) {
    case DataType::kFp32:
      return naive_plain<float>(ready);
    case DataType::kFp64:
      return naive_plain<double>(ready);
    case DataType::kBf16:
      return naive_loop<uint16_t, float>(ready, bf16_to_float, float_to_bf16);
    case DataType::kFp16:
      return naive_loop<uint16_t, float>(ready, fp16_to_float, float_to_fp16);
    case DataType::kInt8:
      return naive_plain<int8_t, int32_t>(ready);
    case DataType::kUint8:
      return naive_plain<uint8_t, int32_t>(ready);
    case DataType::kInt16:
      return naive_plain<int16_t, int32_t>(ready);
    case DataType::kInt32:
      return naive_plain<int32_t>(ready);
    case DataType::kInt64:
      return naive_plain<int64_t>(ready);
  }
}

float bf16_to_float(uint16_t bits) {
  return to_fp32(Bf16{bits});
}

// A NaN keeps its upper bits, as in the vector kernels. to_bf16() of base makes every NaN 0x7fc0, as PyTorch
// does.
uint16_t float_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float fp16_to_float(uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const float mantissa = static_cast<float>(bits & 1023);
  float value;
  if (exponent == 31) {
    value =
        (bits & 1023) != 0 ? std::numeric_limits<float>::quiet_NaN() : std::numeric_limits<float>::infinity();
  } else if (exponent == 0) {
    value = std::ldexp(mantissa, -24);
  } else {
    value = std::ldexp(mantissa + 1024.0f, exponent - 25);
  }
  return (bits & 0x8000) != 0 ? -value : value;
}

uint16_t float_to_fp16(float value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const float size = std::fabs(value);
  if (std::isnan(value)) return sign | 0x7e00;
  if (size == 0.0f) return sign;
  if (size >= 65520.0f) return sign | 0x7c00;  // it rounds to more than 65504, the largest number
  int exponent = 0;
  std::frexp(size, &exponent);
  // The last place of an fp16 number of this size is 2^(exponent - 11), but at least 2^-24.
  const int place = exponent - 11 < -24 ? -24 : exponent - 11;
  const float steps = std::nearbyint(std::ldexp(size, -place));
  if (place == -24) return sign | static_cast<uint16_t>(steps);
  // 1024 ≤ steps ≤ 2048. The addition carries 2048 into the exponent.
  return static_cast<uint16_t>(sign | ((place + 24) * 1024 + static_cast<int>(steps)));
}

}  // namespace starling
