#include "starling/codec/low_rank.h"

#include <algorithm>
#include <utility>

#include "starling/base/error.h"
#include "starling/codec/block_cut.h"
#include "starling/codec/kernel.h"
#include "starling/codec/low_rank_kernels.h"
#include "starling/codec/make_codec.h"
#include "starling/codec/message_bytes.h"
#include "starling/codec/pca.h"
#include "starling/codec/power_sgd.h"

namespace starling {

std::vector<LowRankPart> low_rank_parts(const std::vector<TensorShape>& shapes, int rank) {
  std::vector<LowRankPart> parts;
  size_t offset = 0;
  for (const TensorShape& shape : shapes) {
    LowRankPart part{offset, shape.rows, shape.cols, 0, parts.size()};
    const size_t r = std::min({static_cast<size_t>(rank), shape.rows, shape.cols});
    if (r * (shape.rows + shape.cols) < shape.size()) part.rank = static_cast<int>(r);
    parts.push_back(part);
    offset += shape.size() + shape.padding;
  }
  return parts;
}

LowRankCodec::LowRankCodec(const std::vector<TensorShape>& shapes, int rank, std::unique_ptr<Codec> values)
    : parts_(low_rank_parts(shapes, rank)), values_(std::move(values)), total_(total_size(shapes)) {
  if (shapes.empty())
    throw Error(ErrorCode::kConfig,
                "codec lowrank needs the shapes of the matrices; pass them to make_codec");
}

void LowRankCodec::check_count(size_t count) const {
  STARLING_CHECK(count == total_, "{} values, but the shapes have {} elements", count, total_);
}

size_t LowRankCodec::encoded_bytes(size_t count) const {
  check_count(count);
  size_t values = 0;
  for (const LowRankPart& part : parts_) values += part.values();
  return bytes_of(values);
}

size_t LowRankCodec::encode(std::span<const float> in, std::span<std::byte> out) {
  const size_t bytes = encoded_bytes(in.size());
  check_room(out.size(), bytes);
  std::vector<float> factors;
  std::byte* to = out.data();
  for (size_t i = 0; i < parts_.size(); ++i) {
    const LowRankPart& part = parts_[i];
    const float* from = in.data() + part.offset;
    if (part.rank > 0) {
      factors.resize(part.values());
      factorize(i, from, factors.data(), factors.data() + part.p_size());
      from = factors.data();
    }
    const size_t length = bytes_of(part.values());
    if (values_) {
      values_->encode({from, part.values()}, {to, length});
    } else if (length > 0) {
      std::memcpy(to, from, length);
    }
    to += length;
  }
  return bytes;
}

void LowRankCodec::decode(std::span<const std::byte> in, std::span<float> out) const {
  std::fill(out.begin(), out.end(), 0.0f);
  decode_add(in, out, 1.0f);
}

void LowRankCodec::decode_add(std::span<const std::byte> in, std::span<float> out, float scale) const {
  check_length(name(), in.size(), encoded_bytes(out.size()), out.size());
  size_t count = 0;
  for (const LowRankPart& part : parts_) count += part.values();
  std::vector<float> values(count);
  if (values_) {
    values_->decode(in, values);
  } else if (!in.empty()) {
    std::memcpy(values.data(), in.data(), in.size());
  }
  const float* from = values.data();
  for (const LowRankPart& part : parts_) {
    float* to = out.data() + part.offset;
    if (part.rank > 0) {
      add_product(from, from + part.p_size(), part.rank, scale, to, part.rows, part.cols);
    } else {
      for (size_t i = 0; i < part.size(); ++i) to[i] += scale * from[i];
    }
    from += part.values();
  }
}

// The row of this codec in spec/codecs.inc names this function.
std::unique_ptr<Codec> make_low_rank(const CodecSpec& spec, const std::vector<TensorShape>& shapes) {
  std::unique_ptr<Codec> values = make_value_codec(spec);
  if (spec.form == LowRankForm::kPca)
    return std::make_unique<PcaCodec>(shapes, spec.rank, spec.iterations, std::move(values));
  return std::make_unique<PowerSgdCodec>(shapes, spec.rank, std::move(values));
}

}  // namespace starling
