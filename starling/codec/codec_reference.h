// The naive references of the tests: what each codec's decoder must give for a range, computed value by value from the
// definition, without a message; and its bytes from the formula of docs/codecs.md.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "starling/codec/codec.h"
#include "starling/comm/reduce_kernels.h"

namespace starling {

using Values = std::vector<float>;

// What looks like a gradient: normal numbers whose size changes along the range.
inline Values test_values(size_t count, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  Values x(count);
  for (size_t i = 0; i < count; ++i)
    x[i] = normal(engine) * (0.01f + 0.1f * static_cast<float>(i % 700) / 700);
  return x;
}

// A message of its own length, and back.
inline std::vector<std::byte> message_of(Codec& codec, std::span<const float> in) {
  std::vector<std::byte> message(codec.encoded_bytes(in.size()));
  message.resize(codec.encode(in, message));
  return message;
}

inline Values decoded(const Codec& codec, std::span<const std::byte> message, size_t count) {
  Values out(count, -77.0f);
  codec.decode(message, out);
  return out;
}

inline Values round_trip(Codec& codec, std::span<const float> in) {
  return decoded(codec, message_of(codec, in), in.size());
}

inline Values fp16_reference(const Values& x) {
  Values out;
  for (const float v : x) out.push_back(fp16_to_float(float_to_fp16(v)));
  return out;
}

inline Values bf16_reference(const Values& x) {
  Values out;
  for (const float v : x) out.push_back(bf16_to_float(float_to_bf16(v)));
  return out;
}

// The blocks of a range: {begin, end}.
inline std::vector<std::pair<size_t, size_t>> blocks_reference(size_t count, size_t block,
                                                               const std::vector<TensorShape>& shapes) {
  std::vector<std::pair<size_t, size_t>> blocks;
  size_t at = 0;
  for (const TensorShape& shape : shapes.empty() ? std::vector<TensorShape>{{1, count}} : shapes) {
    for (size_t i = 0; i < shape.size(); i += block)
      blocks.emplace_back(at + i, at + std::min(i + block, shape.size()));
    at += shape.size() + shape.padding;
  }
  return blocks;
}

inline Values int8_reference(const Values& x, size_t block, const std::vector<TensorShape>& shapes) {
  Values out(x.size(), 0.0f);
  for (const auto& [begin, end] : blocks_reference(x.size(), block, shapes)) {
    float max = 0;
    for (size_t i = begin; i < end; ++i) max = std::max(max, std::fabs(x[i]));
    for (size_t i = begin; i < end && max > 0; ++i)
      out[i] = max / 127 * static_cast<float>(std::lrint(x[i] * (127 / max)));
  }
  return out;
}

// In fp64: the codec's means are close to these.
inline Values one_bit_reference(const Values& x, size_t block, const std::vector<TensorShape>& shapes) {
  Values out(x.size(), 0.0f);
  for (const auto& [begin, end] : blocks_reference(x.size(), block, shapes)) {
    double sum[2] = {}, count[2] = {};
    for (size_t i = begin; i < end; ++i) {
      sum[x[i] >= 0] += x[i];
      count[x[i] >= 0] += 1;
    }
    for (size_t i = begin; i < end; ++i) out[i] = static_cast<float>(sum[x[i] >= 0] / count[x[i] >= 0]);
  }
  return out;
}

inline Values threshold_reference(const Values& x, float tau) {
  Values out;
  for (const float v : x) out.push_back(v > tau ? tau : v < -tau ? -tau : 0.0f);
  return out;
}

// The k values of largest magnitude, of equal ones the first.
inline Values prune_reference(const Values& x, size_t k) {
  std::vector<size_t> order(x.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return std::fabs(x[a]) > std::fabs(x[b]); });
  Values out(x.size(), 0.0f);
  for (size_t i = 0; i < k; ++i) out[order[i]] = x[order[i]];
  return out;
}

// Bytes of the gaps between elements that are not zero, each gap g coded as the number unit (g - 1) + (unit > 1 ? 0 or 1 : 0)
// in groups of 7 bits.
inline size_t gap_bytes_reference(const Values& sent, size_t unit) {
  size_t bytes = 0, gap = 0;
  for (const float v : sent) {
    ++gap;
    if (v == 0) continue;
    size_t number = unit * (gap - 1);
    do {
      ++bytes;
      number /= 128;
    } while (number > 0);
    gap = 0;
  }
  return bytes;
}

inline double norm(const Values& x) {
  return std::sqrt(std::inner_product(x.begin(), x.end(), x.begin(), 0.0));
}

inline Values minus(const Values& a, const Values& b) {
  Values out(a.size());
  for (size_t i = 0; i < a.size(); ++i) out[i] = a[i] - b[i];
  return out;
}

}  // namespace starling
