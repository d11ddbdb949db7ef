#include "starling/data/formats/resize.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "starling/base/check.h"

namespace starling {
namespace {

// One output pixel along an axis: the weighted sum of source pixels first, first + 1, …
struct Tap {
  int first = 0;
  std::vector<float> weights;
};

// `scale` is the number of output pixels per source pixel.
std::vector<Tap> taps_of(int from, int to, double scale) {
  const double start = (from - to / scale) / 2;
  const double reach = std::max(1.0, 1.0 / scale);
  std::vector<Tap> taps(static_cast<size_t>(to));
  for (int i = 0; i < to; ++i) {
    const double center = start + (i + 0.5) / scale;
    Tap& tap = taps[static_cast<size_t>(i)];
    tap.first = std::clamp(static_cast<int>(std::floor(center - reach)), 0, from - 1);
    const int last = std::clamp(static_cast<int>(std::ceil(center + reach)), tap.first, from - 1);
    double sum = 0;
    for (int x = tap.first; x <= last; ++x) {
      const double weight = std::max(0.0, 1.0 - std::abs(x + 0.5 - center) / reach);
      tap.weights.push_back(static_cast<float>(weight));
      sum += weight;
    }
    if (sum <= 0) {  // beyond the edge: the edge pixel
      std::fill(tap.weights.begin(), tap.weights.end(), 0.0f);
      tap.weights[center < from / 2.0 ? 0 : tap.weights.size() - 1] = 1.0f;
      sum = 1;
    }
    for (float& weight : tap.weights) weight = static_cast<float>(weight / sum);
  }
  return taps;
}

}  // namespace

void resize_to_cover(const uint8_t* from, ImageShape a, uint8_t* to, ImageShape b) {
  STARLING_CHECK(a.channels == b.channels, "the images have {} and {} channels", a.channels, b.channels);
  const double scale =
      std::max(static_cast<double>(b.width) / a.width, static_cast<double>(b.height) / a.height);
  const std::vector<Tap> across = taps_of(a.width, b.width, scale);
  const std::vector<Tap> down = taps_of(a.height, b.height, scale);
  const size_t channels = static_cast<size_t>(a.channels);
  const size_t from_row = static_cast<size_t>(a.width) * channels;
  std::vector<float> row(static_cast<size_t>(a.width));
  for (size_t c = 0; c < channels; ++c) {
    for (size_t y = 0; y < down.size(); ++y) {
      std::fill(row.begin(), row.end(), 0.0f);
      for (size_t k = 0; k < down[y].weights.size(); ++k) {
        const uint8_t* line = from + (static_cast<size_t>(down[y].first) + k) * from_row + c;
        for (size_t x = 0; x < row.size(); ++x) row[x] += down[y].weights[k] * line[x * channels];
      }
      for (const Tap& tap : across) {
        float sum = 0.5f;
        for (size_t k = 0; k < tap.weights.size(); ++k)
          sum += tap.weights[k] * row[static_cast<size_t>(tap.first) + k];
        *to++ = static_cast<uint8_t>(std::clamp(sum, 0.0f, 255.0f));
      }
    }
  }
}

}  // namespace starling
