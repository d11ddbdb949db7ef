// Codec "qsgd" rounds each value to one of s levels at random, so that the expectation of the decoded value
// is the value. Alistarh, Grubic, Li, Tomioka, Vojnovic: "QSGD: communication-efficient SGD via gradient
// quantization and encoding", NeurIPS 2017 (arXiv 1610.02132), section 3.1, with buckets as in section 4.
//
//   v = max |x| (norm=max) or the 2-norm of x (norm=l2) over the block
//   y = s |x_i| / v,   l = floor(y),   level = l + 1 with probability y - l, otherwise l
//   decoded = sign(x_i) level v / s
//   message: for each block of m values: v (fp32), then m codes s + sign(x_i) level of b bits each
//   b = ceil(log2(2 s + 1));   bytes(n) = sum over the blocks of 4 + ceil(m b / 8)      fixed rate, exact
//
// E decoded = x. With m values in a block, the variance E |decoded - x|² is at most
//   norm=l2:   min(m / s², sqrt(m) / s) |x|²  (lemma 3.1 of the paper)
//   norm=max:  m v² / (4 s²), because a value moves by less than one level
//
// The paper's code of variable length (Elias) is not used, because the length of a message would depend on
// its values.
//
// A block that holds a NaN or infinity, or whose 2-norm exceeds fp32, decodes to NaN. A block with v < 1e-36
// decodes to zeros.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "starling/codec/block_cut.h"
#include "starling/codec/codec_settings.h"
#include "starling/codec/kernel.h"
#include "starling/codec/make_codec.h"
#include "starling/codec/message_bytes.h"
#include "starling/codec/packed_codes.h"
#include "starling/codec/random_codec.h"

namespace starling {
namespace {

constexpr float kSmallestNorm = 1e-36f;  // s / v overflows for norms below about 4e-37

// Returns v of a block, or NaN if the block cannot be encoded.
float norm_of(std::span<const float> block, bool max) {
  double largest = 0, squares = 0;
  for (const float x : block) {
    if (!std::isfinite(x)) return std::numeric_limits<float>::quiet_NaN();
    largest = std::max(largest, std::fabs(static_cast<double>(x)));
    squares += static_cast<double>(x) * x;
  }
  const auto norm = static_cast<float>(max ? largest : std::sqrt(squares));
  if (!std::isfinite(norm)) return std::numeric_limits<float>::quiet_NaN();
  return norm < kSmallestNorm ? 0 : norm;
}

class QsgdCodec final : public RandomCodec {
 public:
  // levels: s, 1 to 127. max: whether v is the largest magnitude. block and shapes: as for BlockCut.
  QsgdCodec(uint64_t seed, int levels, bool max, size_t block, std::vector<TensorShape> shapes)
      : RandomCodec(seed),
        levels_(levels),
        bits_(static_cast<size_t>(std::bit_width(2 * static_cast<unsigned>(levels)))),
        max_(max),
        blocks_(block, std::move(shapes)) {}
  std::string name() const override { return "qsgd"; }
  bool fixed_rate() const override { return true; }
  Combining combining() const override { return Combining::kAdded; }

  size_t encoded_bytes(size_t count) const override {
    size_t bytes = 0;
    blocks_.for_each(count, [&](size_t begin, size_t end) { bytes += 4 + packed_bytes(end - begin, bits_); });
    return bytes;
  }
  size_t encode(std::span<const float> in, std::span<std::byte> out) override {
    const size_t bytes = encoded_bytes(in.size());
    check_room(out.size(), bytes);
    const Draws draws = this->draws();
    std::byte* to = out.data();
    blocks_.for_each(in.size(), [&](size_t begin, size_t end) {
      const float v = norm_of(in.subspan(begin, end - begin), max_);
      const float per_unit = v > 0 ? static_cast<float>(levels_) / v : 0;  // 0 also for NaN
      store_value(to, v);
      pack_codes(to + 4, end - begin, bits_, [&](size_t i) {
        return per_unit > 0 ? code_of(in[begin + i], per_unit, draws.unit(begin + i)) : zero();
      });
      to += 4 + packed_bytes(end - begin, bits_);
    });
    return bytes;
  }
  void decode(std::span<const std::byte> in, std::span<float> out) const override {
    decode_each(in, out, Assign{});
  }
  void decode_add(std::span<const std::byte> in, std::span<float> out, float scale) const override {
    decode_each(in, out, AddScaled{scale});
  }

 private:
  uint32_t zero() const { return static_cast<uint32_t>(levels_); }

  uint32_t code_of(float x, float per_unit, float draw) const {
    const float y = std::fabs(x) * per_unit;
    const float low = std::floor(y);
    // The rounding of the product may exceed the last level.
    const int level = std::min(levels_, static_cast<int>(low) + (draw < y - low ? 1 : 0));
    return static_cast<uint32_t>(levels_ + (x < 0 ? -level : level));
  }

  template <typename Put>
  void decode_each(std::span<const std::byte> in, std::span<float> out, const Put& put) const {
    check_length(name(), in.size(), encoded_bytes(out.size()), out.size());
    const std::byte* from = in.data();
    const auto block = [&](size_t begin, size_t end) {
      const float unit = load_value<float>(from) / static_cast<float>(levels_);
      unpack_codes(from + 4, end - begin, bits_, [&](size_t i, uint32_t code) {
        if (code > 2 * zero()) bad_message("qsgd", in.size(), out.size(), "has a level out of range");
        put(out[begin + i], unit * static_cast<float>(static_cast<int>(code) - levels_));
      });
      from += 4 + packed_bytes(end - begin, bits_);
    };
    blocks_.for_each(out.size(), block, [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) put(out[i], 0.0f);
    });
  }

  int levels_;
  size_t bits_;
  bool max_;
  BlockCut blocks_;
};

}  // namespace

// The row of this codec in spec/codecs.inc names this function.
std::unique_ptr<Codec> make_qsgd(const CodecSpec& spec, const std::vector<TensorShape>& shapes) {
  const int levels = whole_setting(spec, "levels", 7, 1, 127);
  const bool max = word_setting(spec, "norm", {"max", "l2"}) == 0;
  return std::make_unique<QsgdCodec>(spec.seed, levels, max, spec.block, shapes);
}

}  // namespace starling
