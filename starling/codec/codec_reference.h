// The naive references of the codecs' tests. A reference computes what a codec's decoder must return for a
// range, value by value from the definition and without a message. The numbers of bytes come from the
// formulas of docs/reference/codecs.md.
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
#include "starling/comm/reduce/reduce_kernels.h"

namespace starling {

// A range of values.
using Values = std::vector<float>;

// Returns values that resemble a gradient: normal numbers whose size changes along the range.
inline Values test_values(size_t count, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  Values x(count);
  for (size_t i = 0; i < count; ++i)
    x[i] = normal(engine) * (0.01f + 0.1f * static_cast<float>(i % 700) / 700);
  return x;
}

// Returns the message of `in`, with its exact length.
inline std::vector<std::byte> message_of(Codec& codec, std::span<const float> in) {
  std::vector<std::byte> message(codec.encoded_bytes(in.size()));
  message.resize(codec.encode(in, message));
  return message;
}

// Returns the `count` values that `message` decodes to.
inline Values decoded(const Codec& codec, std::span<const std::byte> message, size_t count) {
  Values out(count, -77.0f);
  codec.decode(message, out);
  return out;
}

// Encodes and decodes `in`.
inline Values round_trip(Codec& codec, std::span<const float> in) {
  return decoded(codec, message_of(codec, in), in.size());
}

// Returns what fp16 decodes to.
inline Values fp16_reference(const Values& x) {
  Values out;
  for (const float v : x) out.push_back(fp16_to_float(float_to_fp16(v)));
  return out;
}

// Returns what bf16 decodes to.
inline Values bf16_reference(const Values& x) {
  Values out;
  for (const float v : x) out.push_back(bf16_to_float(float_to_bf16(v)));
  return out;
}

// Returns {begin, end} of each block of a range.
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

// Returns what int8 decodes to.
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

// Returns what 1bit decodes to, with means that are computed in fp64. The codec's own means are close to
// these.
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

// Returns what threshold decodes to.
inline Values threshold_reference(const Values& x, float tau) {
  Values out;
  for (const float v : x) out.push_back(v > tau ? tau : v < -tau ? -tau : 0.0f);
  return out;
}

// Returns what prune decodes to: the k values of largest magnitude. Of values of equal magnitude it keeps the
// first ones.
inline Values prune_reference(const Values& x, size_t k) {
  std::vector<size_t> order(x.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return std::fabs(x[a]) > std::fabs(x[b]); });
  Values out(x.size(), 0.0f);
  for (size_t i = 0; i < k; ++i) out[order[i]] = x[order[i]];
  return out;
}

// Returns the number of bytes of the gaps between nonzero elements. A gap g is coded as the number unit (g -
// 1), plus a sign bit if unit is 2, in groups of 7 bits. The sign bit does not change the length.
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

// Returns the 2-norm.
inline double norm(const Values& x) {
  return std::sqrt(std::inner_product(x.begin(), x.end(), x.begin(), 0.0));
}

// Returns a - b.
inline Values minus(const Values& a, const Values& b) {
  Values out(a.size());
  for (size_t i = 0; i < a.size(); ++i) out[i] = a[i] - b[i];
  return out;
}

}  // namespace starling
