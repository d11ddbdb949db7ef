// Codec "qsgd" rounds each value to one of s levels at random, so that the expectation of the decoded value
// is the value. Alistarh, Grubic, Li, Tomioka, Vojnovic: "QSGD: communication-efficient SGD via gradient
// quantization and encoding", NeurIPS 2017 (arXiv 1610.02132), section 3.1, with buckets as in section 4.
//
//   v = max |x| (norm=max) or the 2-norm of x (norm=l2) over the block.
//   y = s |x_i| / v,   l = floor(y),   level = l + 1 with probability y - l, otherwise l.
//   decoded = sign(x_i) level v / s.
//   message: for each block of m values: v (fp32), then m codes s + sign(x_i) level of b bits each.
//   b = ceil(log2(2 s + 1)).
//   bytes(n) = sum over the blocks of 4 + ceil(m b / 8).                                Fixed rate, exact.
//
// E decoded = x. The variance E |decoded - x|² of a block of m values has a bound:
//
//   norm=l2:   at most min(m / s², sqrt(m) / s) |x|² (lemma 3.1 of the paper).
//   norm=max:  at most m v² / (4 s²), because a value moves by less than one level.
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

#include "starling/codec/codec_settings.h"
#include "starling/codec/make_codec.h"
#include "starling/codec/packed_blocks.h"

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

// The format of QSGD, with the names of the formulas above.
class QsgdFormat {
 public:
  static constexpr const char* kName = "qsgd";
  static constexpr Combining kCombining = Combining::kAdded;

  // levels: s, 1 to 127. max: whether v is the largest magnitude.
  QsgdFormat(int levels, bool max)
      : levels_(levels),
        bits_(static_cast<size_t>(std::bit_width(2 * static_cast<unsigned>(levels)))),
        max_(max) {}
  size_t bits() const { return bits_; }
  float head(std::span<const float> block) const { return norm_of(block, max_); }

  auto encoder(float v, const Draws& draws) const {
    const float per_unit = v > 0 ? static_cast<float>(levels_) / v : 0;  // 0 also for NaN
    return [this, per_unit, draws](float x, size_t i) {
      return per_unit > 0 ? code_of(x, per_unit, draws.unit(i)) : zero();
    };
  }
  auto decoder(float v, const RefuseMessage& refuse) const {
    const float unit = v / static_cast<float>(levels_);
    return [this, unit, refuse](uint32_t code) {
      if (code > 2 * zero()) refuse("has a level out of range");
      return unit * static_cast<float>(static_cast<int>(code) - levels_);
    };
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

  int levels_;
  size_t bits_;
  bool max_;
};

}  // namespace

// The row of this codec in spec/codecs.inc names this function.
std::unique_ptr<Codec> make_qsgd(const CodecSpec& spec, const std::vector<TensorShape>& shapes) {
  const int levels = whole_setting(spec, "levels", 7, 1, 127);
  const bool max = word_setting(spec, "norm", {"max", "l2"}) == 0;
  return packed_blocks(spec.seed, QsgdFormat(levels, max), spec.block, shapes);
}

}  // namespace starling
