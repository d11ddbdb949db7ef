// ImageWindows are the square windows of a layer on images: the receptive fields of filters, and the windows
// of pooling and normalization. The window of output position o begins at row o · stride − padding of the
// input, and columns are treated alike. Rows and columns outside of the image count as zero.
#pragma once

#include <algorithm>
#include <cstdint>

namespace starling {

// Rows or columns begin … end − 1.
struct PixelRange {
  int64_t begin = 0, end = 0;

  int64_t count() const { return end - begin; }
  bool operator==(const PixelRange&) const = default;
};

// Returns what both ranges have. count() is 0 if they have nothing in common.
inline PixelRange common_range(PixelRange a, PixelRange b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

// Lengths in pixels. size and stride are at least 1, and padding is at least 0 and less than size.
struct ImageWindows {
  int64_t size = 1;
  int64_t stride = 1;
  int64_t padding = 0;

  bool operator==(const ImageWindows&) const = default;

  // Returns the number of output positions along an axis of `length` pixels. 0: no window fits. The windows
  // have passed check_windows().
  int64_t positions(int64_t length) const {
    const int64_t room = length + 2 * padding - size;
    return room < 0 ? 0 : room / stride + 1;
  }
  // Returns the pixels under the windows of some positions. They may begin before 0 and end after the image.
  PixelRange covered(PixelRange positions) const {
    if (positions.count() <= 0) return {};
    return {positions.begin * stride - padding, (positions.end - 1) * stride - padding + size};
  }
};

// Throws ConfigError for windows whose lengths are out of range. `place` becomes its where().
void check_windows(const ImageWindows& windows, const char* place = "windows");

}  // namespace starling
