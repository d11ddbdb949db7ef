// Codec "terngrad" sends -1, 0 or 1 for each value, and one scale for each block. Wen, Xu, Yan, Wu, Wang,
// Chen, Li: "TernGrad: ternary gradients to reduce communication in distributed deep learning", NIPS 2017
// (arXiv 1705.07878), equations 1 and 8.
//
//   σ = root mean square of the block;   y = x, limited to ±clip σ (clip=0: y = x)
//   s = max |y|,   b_i = 1 with probability |y_i| / s, otherwise 0
//   decoded = s sign(y_i) b_i
//   message: for each block of m values: s (fp32), then m codes of 2 bits: 0 for 0, 1 for s, 2 for -s
//   bytes(n) = sum over the blocks of 4 + ceil(m / 4)                                 fixed rate, exact
//
// E decoded = y, and E (decoded - y)² = |y| (s - |y|) for each value. Clipping makes this variance small and
// adds the bias y - x.
//
// The paper takes σ as the standard deviation of gradients whose mean is 0, which is their root mean square.
// It takes one scale for each layer. A block as large as the largest tensor does the same.
//
// A block that holds a NaN or infinity decodes to NaN. A block with s < 1e-36 decodes to zeros.
#include <algorithm>
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

constexpr float kSmallestScale = 1e-36f;  // 1 / s overflows for scales below about 3e-39
constexpr size_t kTernaryBits = 2;

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

class TernGradCodec final : public RandomCodec {
 public:
  // clip: the limit of a value in root mean squares, or 0. block and shapes: as for BlockCut.
  TernGradCodec(uint64_t seed, double clip, size_t block, std::vector<TensorShape> shapes)
      : RandomCodec(seed), clip_(clip), blocks_(block, std::move(shapes)) {}
  std::string name() const override { return "terngrad"; }
  bool fixed_rate() const override { return true; }
  Combining combining() const override { return Combining::kAdded; }

  size_t encoded_bytes(size_t count) const override {
    size_t bytes = 0;
    blocks_.for_each(count, [&](size_t begin, size_t end) { bytes += bytes_of_block(end - begin); });
    return bytes;
  }
  size_t encode(std::span<const float> in, std::span<std::byte> out) override {
    const size_t bytes = encoded_bytes(in.size());
    check_room(out.size(), bytes);
    const Draws draws = this->draws();
    std::byte* to = out.data();
    blocks_.for_each(in.size(), [&](size_t begin, size_t end) {
      const float scale = scale_of(in.subspan(begin, end - begin), clip_);
      store_value(to, scale);
      pack_codes(to + 4, end - begin, kTernaryBits, [&](size_t i) {
        const float x = in[begin + i];
        // A comparison with NaN is false, so the codes of a block that is NaN are 0.
        return draws.unit(begin + i) * scale < std::fabs(x) && scale > 0 ? (x > 0 ? 1u : 2u) : 0u;
      });
      to += bytes_of_block(end - begin);
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
  static size_t bytes_of_block(size_t m) { return 4 + packed_bytes(m, kTernaryBits); }

  template <typename Put>
  void decode_each(std::span<const std::byte> in, std::span<float> out, const Put& put) const {
    check_length(name(), in.size(), encoded_bytes(out.size()), out.size());
    const std::byte* from = in.data();
    const auto block = [&](size_t begin, size_t end) {
      const auto scale = load_value<float>(from);
      const float values[] = {0 * scale, scale, -scale};  // NaN · 0 is NaN
      unpack_codes(from + 4, end - begin, kTernaryBits, [&](size_t i, uint32_t code) {
        if (code > 2) bad_message("terngrad", in.size(), out.size(), "has a code out of range");
        put(out[begin + i], values[code]);
      });
      from += bytes_of_block(end - begin);
    };
    blocks_.for_each(out.size(), block, [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) put(out[i], 0.0f);
    });
  }

  double clip_;
  BlockCut blocks_;
};

}  // namespace

// The row of this codec in spec/codecs.inc names this function.
std::unique_ptr<Codec> make_tern_grad(const CodecSpec& spec, const std::vector<TensorShape>& shapes) {
  const double clip = number_setting(spec, "clip", 2.5, 0, 1e6);
  return std::make_unique<TernGradCodec>(spec.seed, clip, spec.block, shapes);
}

}  // namespace starling
