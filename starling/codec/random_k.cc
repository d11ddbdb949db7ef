// Codec "random-k" sends the values at k random positions, which are equal on all ranks. Only the values
// travel, because every rank computes the positions. Stich, Cordonnier, Jaggi: "Sparsified SGD with memory",
// NeurIPS 2018 (arXiv 1809.07599), algorithm 1 with rand_k.
//
//   S = a set of k of the n positions, uniform among all such sets, from the seed and the step.
//   k = ceil(keep n), at least 1.
//   decoded = c x on S, 0 elsewhere.
//   c = 1 with error feedback (the paper),   c = n / k without it.
//   message: the k values (fp32) in the order of their positions.
//   bytes(n) = 4 k.                                                                  Fixed rate, exact.
//
// With c = 1 the message is a contraction, as error feedback needs it: E |x - decoded|² = (1 - k/n) |x|².
// With c = n / k the message is unbiased: E decoded = x and E |x - decoded|² = (n/k - 1) |x|².
//
// The ranks send values of equal positions, so the mean of p messages is an all-reduce of k values
// (AveragingCodec). It sends 2 (p - 1)/p · 4 k bytes.
//
// S is drawn by Floyd's algorithm (Bentley, Floyd: "A sample of brilliance", CACM 1987).
//
// If any value of the range is NaN or infinite, the k values of the message are NaN.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "starling/codec/codec_spec.h"
#include "starling/codec/kernel.h"
#include "starling/codec/make_codec.h"
#include "starling/codec/message_bytes.h"
#include "starling/codec/random_codec.h"

namespace starling {
namespace {

// Returns a random number below `count`, by the upper half of a product of 128 bits.
size_t random_below(uint64_t bits, size_t count) {
  return static_cast<size_t>((static_cast<unsigned __int128>(bits) * count) >> 64);
}

bool all_finite(std::span<const float> values) {
  return std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); });
}

class RandomKCodec final : public RandomCodec, public AveragingCodec {
 public:
  // unbiased: whether the decoded values are multiplied by n / k.
  RandomKCodec(uint64_t seed, double keep, bool unbiased)
      : RandomCodec(seed), keep_(keep), unbiased_(unbiased) {}
  std::string name() const override { return "random-k"; }
  bool fixed_rate() const override { return true; }
  size_t encoded_bytes(size_t count) const override { return 4 * kept_of(count); }
  Combining combining() const override { return Combining::kAveraged; }
  AveragingCodec* averaging() override { return this; }

  size_t encode(std::span<const float> in, std::span<std::byte> out) override {
    const size_t bytes = encoded_bytes(in.size());
    check_room(out.size(), bytes);
    const std::vector<float> sent = gathered(in, positions(in.size()));
    if (bytes > 0) std::memcpy(out.data(), sent.data(), bytes);
    return bytes;
  }
  void decode(std::span<const std::byte> in, std::span<float> out) const override {
    std::fill(out.begin(), out.end(), 0.0f);
    decode_add(in, out, 1.0f);
  }
  void decode_add(std::span<const std::byte> in, std::span<float> out, float scale) const override {
    check_length(name(), in.size(), encoded_bytes(out.size()), out.size());
    const float factor = scale * multiplier(out.size());
    const std::byte* from = in.data();
    for (const size_t i : positions(out.size())) {
      out[i] += factor * load_value<float>(from);
      from += 4;
    }
  }
  void average(std::span<float> data, std::span<float> own, const Mean& mean) override {
    const std::vector<size_t> chosen = positions(data.size());
    std::vector<float> sent = gathered(data, chosen);
    const float factor = multiplier(data.size());
    if (!own.empty()) scatter(chosen, sent, factor, own);
    mean(sent, {});
    scatter(chosen, sent, factor, data);
  }

 private:
  size_t kept_of(size_t count) const {
    const auto k = static_cast<size_t>(std::ceil(keep_ * static_cast<double>(count)));
    return std::min(count, std::max<size_t>(k, 1));
  }

  float multiplier(size_t count) const {
    if (!unbiased_ || count == 0) return 1;
    return static_cast<float>(static_cast<double>(count) / static_cast<double>(kept_of(count)));
  }

  // Returns the positions of the present step in increasing order.
  std::vector<size_t> positions(size_t count) const {
    const size_t k = kept_of(count);
    const Draws draws = shared_draws();
    std::vector<uint64_t> chosen((count + 63) / 64, 0);
    for (size_t last = count - k; last < count; ++last) {
      size_t at = random_below(draws.bits(last), last + 1);
      if ((chosen[at / 64] >> at % 64 & 1) != 0) at = last;
      chosen[at / 64] |= uint64_t{1} << at % 64;
    }
    std::vector<size_t> result;
    result.reserve(k);
    for (size_t word = 0; word < chosen.size(); ++word) {
      for (uint64_t left = chosen[word]; left != 0; left &= left - 1)
        result.push_back(64 * word + static_cast<size_t>(std::countr_zero(left)));
    }
    return result;
  }

  static std::vector<float> gathered(std::span<const float> in, const std::vector<size_t>& chosen) {
    std::vector<float> sent(chosen.size(), std::numeric_limits<float>::quiet_NaN());
    if (!all_finite(in)) return sent;
    for (size_t i = 0; i < chosen.size(); ++i) sent[i] = in[chosen[i]];
    return sent;
  }

  static void scatter(const std::vector<size_t>& chosen, const std::vector<float>& values, float factor,
                      std::span<float> out) {
    std::fill(out.begin(), out.end(), 0.0f);
    for (size_t i = 0; i < chosen.size(); ++i) out[chosen[i]] = factor * values[i];
  }

  double keep_;
  bool unbiased_;
};

}  // namespace

// The row of this codec in spec/codecs.inc names this function.
std::unique_ptr<Codec> make_random_k(const CodecSpec& spec, const std::vector<TensorShape>& /*shapes*/) {
  return std::make_unique<RandomKCodec>(spec.seed, spec.keep, !spec.error_feedback);
}

}  // namespace starling
