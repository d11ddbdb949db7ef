// The naive references of the codecs that draw. Each computes in fp64, from the equation of the paper and the
// key of random_codec.h, what a decoder must return.
#pragma once

#include <cmath>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "starling/base/keyed_random.h"
#include "starling/codec/codec_reference.h"

namespace starling {

// The key of a message.
struct KeyReference {
  uint64_t seed, step, stream;
};

// Returns draw `i` of a message.
inline uint64_t draw_reference(const KeyReference& key, size_t i) {
  return mix64(key_of(key.seed, key.step, key.stream) + i * kGolden);
}

// Returns the number in [0, 1) of draw `i`: its upper 24 bits.
inline double unit_reference(const KeyReference& key, size_t i) {
  return std::ldexp(static_cast<double>(draw_reference(key, i) >> 40), -24);
}

// A decoded value. If the draw is so near to the border between two values that the rounding of fp32 decides,
// the decoded value may also be `other`.
struct RoundedReference {
  double value = 0, other = 0;
  bool near = false;
};

// Returns one of two values. The second one has this probability.
inline RoundedReference rounded_reference(double first, double second, double probability, double draw) {
  const bool up = draw < probability;
  return {up ? second : first, up ? first : second, std::fabs(draw - probability) < 1e-4};
}

using BlocksReference = std::vector<std::pair<size_t, size_t>>;

// Returns what qsgd decodes to: equation 4 of the paper. Values outside the blocks are 0.
inline std::vector<RoundedReference> qsgd_reference(const Values& x, int levels, bool max,
                                                    const BlocksReference& blocks, const KeyReference& key) {
  std::vector<RoundedReference> out(x.size());
  for (const auto& [begin, end] : blocks) {
    double largest = 0, squares = 0;
    for (size_t i = begin; i < end; ++i) {
      largest = std::max(largest, std::fabs(static_cast<double>(x[i])));
      squares += static_cast<double>(x[i]) * x[i];
    }
    const double v = max ? largest : std::sqrt(squares);
    for (size_t i = begin; i < end && v > 0; ++i) {
      const double y = std::fabs(x[i]) / v * levels, low = std::min<double>(std::floor(y), levels - 1);
      const double unit = (x[i] < 0 ? -v : v) / levels;
      out[i] = rounded_reference(low * unit, (low + 1) * unit, y - low, unit_reference(key, i));
    }
  }
  return out;
}

// Returns what terngrad decodes to: equations 1 and 8 of the paper. clip: 0 for none.
inline std::vector<RoundedReference> tern_grad_reference(const Values& x, double clip,
                                                         const BlocksReference& blocks,
                                                         const KeyReference& key) {
  std::vector<RoundedReference> out(x.size());
  for (const auto& [begin, end] : blocks) {
    double squares = 0, s = 0;
    for (size_t i = begin; i < end; ++i) squares += static_cast<double>(x[i]) * x[i];
    const double limit = clip * std::sqrt(squares / static_cast<double>(end - begin));
    std::vector<double> y;
    for (size_t i = begin; i < end; ++i) {
      y.push_back(x[i]);
      if (clip > 0 && std::fabs(y.back()) > limit) y.back() = y.back() > 0 ? limit : -limit;
      s = std::max(s, std::fabs(y.back()));
    }
    for (size_t i = begin; i < end && s > 0; ++i) {
      const double value = y[i - begin];
      out[i] = rounded_reference(0, value < 0 ? -s : s, std::fabs(value) / s, unit_reference(key, i));
    }
  }
  return out;
}

// Returns what signsgd decodes value `i` to, if some value of its tensor is not 0.
inline double sign_reference(double x, size_t i, const KeyReference& key) {
  if (x > 0) return 1;
  if (x < 0) return -1;
  return draw_reference(key, i) >= uint64_t{1} << 63 ? 1 : -1;
}

// Returns the positions of random-k, by Floyd's algorithm with a set.
inline std::set<size_t> positions_reference(size_t count, size_t k, uint64_t seed, uint64_t step) {
  std::set<size_t> chosen;
  for (size_t last = count - k; last < count; ++last) {
    const uint64_t draw = draw_reference({seed, step, ~uint64_t{0}}, last);
    // The upper 64 bits of draw · (last + 1), by halves of 32 bits.
    const uint64_t n = last + 1, low = (draw & 0xffffffffu) * n, high = (draw >> 32) * n + (low >> 32);
    if (!chosen.insert(high >> 32).second) chosen.insert(last);
  }
  return chosen;
}

}  // namespace starling
