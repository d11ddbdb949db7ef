// Codec "terngrad" sends -1, 0 or 1 for each value, and one scale for each block. Wen, Xu, Yan, Wu, Wang,
// Chen, Li: "TernGrad: ternary gradients to reduce communication in distributed deep learning", NIPS 2017
// (arXiv 1705.07878), equations 1 and 8.
//
//   σ = root mean square of the block.
//   y = x, limited to ±clip σ (clip=0: y = x).
//   s = max |y|,   b_i = 1 with probability |y_i| / s, otherwise 0.
//   decoded = s sign(y_i) b_i.
//   message: for each block of m values: s (fp32), then m codes of 2 bits: 0 for 0, 1 for s, 2 for -s.
//   bytes(n) = sum over the blocks of 4 + ceil(m / 4).                                Fixed rate, exact.
//
// E decoded = y, and E (decoded - y)² = |y| (s - |y|) for each value. Clipping makes this variance small and
// adds the bias y - x.
//
// The paper takes σ as the standard deviation of gradients whose mean is 0, which is their root mean square.
// It takes one scale for each layer. A block as large as the largest tensor does the same.
//
// A block that holds a NaN or infinity decodes to NaN. A block with s < 1e-36 decodes to zeros.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "starling/codec/codec_settings.h"
#include "starling/codec/make_codec.h"
#include "starling/codec/packed_blocks.h"

namespace starling {
namespace {

constexpr float kSmallestScale = 1e-36f;  // 1 / s overflows for scales below about 3e-39

// Returns s, the largest magnitude after clipping, or NaN if some value is not finite. Values beyond s are
// limited to s.
float scale_of(std::span<const float> block, double clip) {
  double largest = 0, squares = 0;
  for (const float x : block) {
    if (!std::isfinite(x)) return std::numeric_limits<float>::quiet_NaN();
    largest = std::max(largest, std::fabs(static_cast<double>(x)));
    squares += static_cast<double>(x) * x;
  }
  const double sigma = std::sqrt(squares / static_cast<double>(block.size()));
  const auto scale = static_cast<float>(clip > 0 ? std::min(largest, clip * sigma) : largest);
  return scale < kSmallestScale ? 0 : scale;
}

// The format of TernGrad, with the names of the formulas above.
class TernGradFormat {
 public:
  static constexpr const char* kName = "terngrad";
  static constexpr Combining kCombining = Combining::kAdded;

  // clip: the limit of a value in root mean squares, or 0.
  explicit TernGradFormat(double clip) : clip_(clip) {}
  static constexpr size_t bits() { return 2; }
  float head(std::span<const float> block) const { return scale_of(block, clip_); }

  static auto encoder(float scale, const Draws& draws) {
    return [scale, draws](float x, size_t i) {
      // A comparison with NaN is false, so the codes of a block that is NaN are 0.
      return draws.unit(i) * scale < std::fabs(x) && scale > 0 ? (x > 0 ? 1u : 2u) : 0u;
    };
  }
  static auto decoder(float scale, const RefuseMessage& refuse) {
    const std::array<float, 3> values = {0 * scale, scale, -scale};  // NaN · 0 is NaN
    return [values, refuse](uint32_t code) {
      if (code > 2) refuse("has a code out of range");
      return values[code];
    };
  }

 private:
  double clip_;
};

}  // namespace

// The row of this codec in spec/codecs.inc names this function.
std::unique_ptr<Codec> make_tern_grad(const CodecSpec& spec, const std::vector<TensorShape>& shapes) {
  const double clip = number_setting(spec, "clip", 2.5, 0, 1e6);
  return packed_blocks(spec.seed, TernGradFormat(clip), spec.block, shapes);
}

}  // namespace starling
