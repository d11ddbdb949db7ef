#include "starling/server/row_batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <type_traits>

#include "starling/base/error.h"

namespace starling {
namespace {

[[noreturn]] void refuse_delta(int64_t key, const std::string& why) {
  throw ConfigError("rows", fmt::format("the change of row {} {}", key, why));
}

// Appends pairs that are in ascending order of their indices, and adds up those of equal indices.
template <typename T, typename At>
void append_ascending(const BasicRowDelta<T>& delta, const At& at, BasicRowBatch<T>& out) {
  const size_t count = delta.change.size();
  for (size_t i = 0; i < count;) {
    const int32_t index = delta.index[at(i)];
    T sum = 0;
    for (; i < count && delta.index[at(i)] == index; ++i)
      sum = row_sum(sum, delta.change[at(i)], delta.key, index);
    if (sum != 0) out.add(index, sum);
  }
}

template <typename T>
void append_dense(const BasicRowDelta<T>& delta, BasicRowBatch<T>& out) {
  for (size_t i = 0; i < delta.change.size(); ++i) {
    const T change = row_sum(T{0}, delta.change[i], delta.key, static_cast<int32_t>(i));
    if (change != 0) out.add(static_cast<int32_t>(i), change);
  }
}

}  // namespace

template <typename T>
T row_sum(T a, T b, int64_t key, int32_t index) {
  if constexpr (std::is_integral_v<T>) {
    T sum = 0;
    if (!__builtin_add_overflow(a, b, &sum)) return sum;
    throw Error(ErrorCode::kNumeric,
                fmt::format("element {} of row {} would be {} + {}, which {} bits cannot hold", index, key, a,
                            b, 8 * sizeof(T)));
  } else {
    const T sum = a + b;
    if (std::isfinite(sum)) return sum;
    throw Error(ErrorCode::kNumeric,
                fmt::format("element {} of row {} would be {} + {}, which is not finite", index, key, a, b));
  }
}

template <typename T>
void append_delta(const BasicRowDelta<T>& delta, int32_t width, BasicRowBatch<T>& out) {
  const size_t count = delta.change.size();
  if (delta.index.empty() && count != 0 && count != static_cast<size_t>(width))
    refuse_delta(delta.key,
                 fmt::format("has {} elements without indices; the table has {} columns", count, width));
  if (!delta.index.empty() && delta.index.size() != count)
    refuse_delta(delta.key, fmt::format("has {} indices for {} elements", delta.index.size(), count));
  for (const int32_t index : delta.index) {
    if (index < 0 || index >= width)
      refuse_delta(delta.key, fmt::format("has index {}; the indices are 0 … {}", index, width - 1));
  }
  out.begin_row(delta.key);
  if (delta.index.empty()) {
    append_dense(delta, out);
  } else if (std::is_sorted(delta.index.begin(), delta.index.end())) {
    append_ascending(delta, [](size_t i) { return i; }, out);
  } else {
    std::vector<size_t> order(count);
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return delta.index[a] < delta.index[b]; });
    append_ascending(delta, [&](size_t i) { return order[i]; }, out);
  }
  if (out.row(out.size() - 1).index.empty()) out.pop_row();
}

template int32_t row_sum(int32_t, int32_t, int64_t, int32_t);
template int64_t row_sum(int64_t, int64_t, int64_t, int32_t);
template float row_sum(float, float, int64_t, int32_t);
template double row_sum(double, double, int64_t, int32_t);
template void append_delta(const BasicRowDelta<int32_t>&, int32_t, BasicRowBatch<int32_t>&);
template void append_delta(const BasicRowDelta<int64_t>&, int32_t, BasicRowBatch<int64_t>&);
template void append_delta(const BasicRowDelta<float>&, int32_t, BasicRowBatch<float>&);
template void append_delta(const BasicRowDelta<double>&, int32_t, BasicRowBatch<double>&);

}  // namespace starling
