#include "starling/optim/finite.h"

#include <cstdint>
#include <type_traits>

#include "starling/base/isa_dispatch.h"

namespace starling {
namespace {

constexpr size_t kFiniteBlock = 4096;  // elements between two checks of the result

// Integers keep the inner loop free of branches, so that it is vectorized.
template <typename T>
struct FiniteScan {
  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  static constexpr Bits kExponent =
      sizeof(T) == 4 ? Bits{0x7f800000u} : static_cast<Bits>(0x7ff0000000000000u);

  const T* values;
  size_t count;
  bool& finite;

  STARLING_INLINE void operator()() const {
    finite = true;
    for (size_t begin = 0; begin < count && finite; begin += kFiniteBlock) {
      const size_t n = count - begin < kFiniteBlock ? count - begin : kFiniteBlock;
      const T* from = values + begin;
      Bits bad = 0;
      for (size_t i = 0; i < n; ++i)
        bad |= (__builtin_bit_cast(Bits, from[i]) & kExponent) == kExponent ? Bits{1} : Bits{0};
      finite = bad == 0;
    }
  }
};

}  // namespace

template <typename T>
bool all_finite(const T* values, size_t count, Isa isa) {
  bool finite = true;
  dispatch(isa, FiniteScan<T>{values, count, finite});
  return finite;
}

template bool all_finite(const float*, size_t, Isa);
template bool all_finite(const double*, size_t, Isa);

}  // namespace starling
