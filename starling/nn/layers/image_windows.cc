#include "starling/nn/layers/image_windows.h"

#include <fmt/format.h>

#include "starling/base/error.h"

namespace starling {
namespace {

constexpr int64_t kLongest = int64_t{1} << 31;  // of a size or a stride, so that no sum overflows

}  // namespace

void check_windows(const ImageWindows& windows, const char* place) {
  const bool positive = windows.size >= 1 && windows.stride >= 1;
  if (positive && windows.padding >= 0 && windows.padding < windows.size && windows.size <= kLongest &&
      windows.stride <= kLongest)
    return;
  throw ConfigError(place, fmt::format("size {}, stride {} and padding {} make no windows: size and "
                                       "stride are from 1 to {}, and padding is less than size",
                                       windows.size, windows.stride, windows.padding, kLongest));
}

}  // namespace starling
