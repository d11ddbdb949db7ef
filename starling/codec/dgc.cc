// Codec "dgc" is Deep Gradient Compression: it sends the values of largest magnitude, as prune does, and
// sends more of them in its first steps. Lin, Han, Mao, Wang, Dally: "Deep Gradient Compression: reducing the
// communication bandwidth for distributed training", ICLR 2018 (arXiv 1712.01887), section 3.3.
//
//   phases  = the number of i >= 1 with 4^-i > keep.
//   keep(t) = 4^-(1 + floor(phases (t - 1) / warmup))  for t <= warmup,   keep  for t > warmup.
//   message and bytes: those of prune (prune.h) with keep(t), chosen for each tensor apart.
//
// A tensor of m values sends its ceil(keep(t) m) values of largest magnitude, at least 1, as in algorithm 1
// of the paper, which has a threshold for each layer. The padding between tensors does not count and is not
// sent. If the shapes are not known, the range is one tensor.
//
// t is the step (stepped_codec.h). All ranks have the same step, so a receiver knows k. With keep = 0.001
// there are four phases, and the shares that are not sent are those of the paper. They are 75 %, 93.75 %,
// 98.4375 % and 99.6 %, and 99.9 % after the warm-up.
//
// The rest of the paper is not in this file. Error feedback is in error_feedback.h, momentum correction and
// momentum factor masking are in momentum_correction.h, and local gradient clipping is in
// parallel/compressed_sgd.h.
#include <algorithm>
#include <cmath>

#include "starling/base/error.h"
#include "starling/codec/codec_settings.h"
#include "starling/codec/make_codec.h"
#include "starling/codec/prune.h"
#include "starling/codec/stepped_codec.h"
#include "starling/spec/codec_table.h"

namespace starling {
namespace {

// The share of the values that the first phase of the warm-up sends. Each later phase sends a quarter of the
// share of the phase before.
constexpr double kFirstShare = 0.25;

class DgcCodec final : public SteppedCodec {
 public:
  // keep: the share of the values that is sent after the warm-up. warmup: the steps of the warm-up. values:
  // as for PruneCodec. shapes: the tensors of the range, or empty.
  DgcCodec(double keep, uint64_t warmup, std::unique_ptr<Codec> values,
           const std::vector<TensorShape>& shapes)
      : keep_(keep), warmup_(warmup), list_(keep, std::move(values), "dgc", shapes) {
    for (double share = kFirstShare; share > keep; share /= 4) ++phases_;
    set_step(0);
  }
  std::string name() const override { return list_.name(); }
  bool fixed_rate() const override { return false; }
  Combining combining() const override { return Combining::kMerged; }
  size_t encoded_bytes(size_t count) const override { return list_.encoded_bytes(count); }
  size_t encode(std::span<const float> in, std::span<std::byte> out) override {
    return list_.encode(in, out);
  }
  void decode(std::span<const std::byte> in, std::span<float> out) const override { list_.decode(in, out); }
  void decode_add(std::span<const std::byte> in, std::span<float> out, float scale) const override {
    list_.decode_add(in, out, scale);
  }
  void set_step(uint64_t step) override {
    SteppedCodec::set_step(step);
    list_.set_keep(share_at(std::max<uint64_t>(step, 1)));
  }

 private:
  double share_at(uint64_t step) const {
    if (step > warmup_ || phases_ == 0) return keep_;
    const uint64_t phase = (step - 1) * phases_ / warmup_;
    return std::ldexp(kFirstShare, -2 * static_cast<int>(phase));
  }

  double keep_;
  uint64_t warmup_;
  uint64_t phases_ = 0;
  PruneCodec list_;
};

}  // namespace

// The row of this codec in spec/codecs.inc names this function.
std::unique_ptr<Codec> make_dgc(const CodecSpec& spec, const std::vector<TensorShape>& shapes) {
  const int warmup = whole_setting(spec, "warmup", find_codec("dgc")->warmup, 0, 1'000'000'000);
  if (spec.settings.contains("warmup") && warmup > 0 && spec.keep >= kFirstShare)
    throw ConfigError("--codec",
                      "codec " + name_of(spec) +
                          ": a warm-up begins with keep = 0.25 and ends with a smaller one; give a "
                          "keep below 0.25, or leave out warmup");
  return std::make_unique<DgcCodec>(spec.keep, static_cast<uint64_t>(warmup), make_value_codec(spec), shapes);
}

}  // namespace starling
