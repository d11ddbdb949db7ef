// A codec that is not part of Starling. It writes a scale and one 16-bit integer per value.
//
//   scale = max |x| / limit over the range,   q = round(x / scale),   decoded = scale q
//   bytes(n) = 4 + 2 n                                                          fixed rate, exact
//
// The setting `limit` is from 1 to 32767, which is its default. If a value is not finite, every decoded value
// is NaN.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <string>

#include "starling/base/error.h"
#include "starling/codec/make_codec.h"
#include "starling/codec/message_bytes.h"

namespace starling {
namespace {

class Fixed16 final : public Codec {
 public:
  explicit Fixed16(int limit) : limit_(static_cast<float>(limit)) {}
  std::string name() const override { return "fixed16"; }
  bool fixed_rate() const override { return true; }
  Combining combining() const override { return Combining::kAdded; }
  size_t encoded_bytes(size_t count) const override { return 4 + 2 * count; }

  size_t encode(std::span<const float> in, std::span<std::byte> out) override {
    float largest = 0;
    for (const float x : in) largest = std::isfinite(x) ? std::max(largest, std::abs(x)) : NAN;
    const float scale = largest / limit_;
    store_value(out.data(), scale);
    for (size_t i = 0; i < in.size(); ++i)
      store_value(out.data() + 4 + 2 * i, static_cast<int16_t>(scale > 0 ? std::lround(in[i] / scale) : 0));
    return encoded_bytes(in.size());
  }
  void decode(std::span<const std::byte> in, std::span<float> out) const override {
    std::fill(out.begin(), out.end(), 0.0f);
    decode_add(in, out, 1);
  }
  void decode_add(std::span<const std::byte> in, std::span<float> out, float scale) const override {
    check_length("fixed16", in.size(), encoded_bytes(out.size()), out.size());
    const auto unit = load_value<float>(in.data());
    for (size_t i = 0; i < out.size(); ++i)
      out[i] += scale * (unit * static_cast<float>(load_value<int16_t>(in.data() + 4 + 2 * i)));
  }

 private:
  float limit_;
};

}  // namespace

std::unique_ptr<Codec> make_fixed16(const CodecSpec& spec, const std::vector<TensorShape>& /*shapes*/) {
  const auto setting = spec.settings.find("limit");
  int limit = 32767;
  if (setting != spec.settings.end()) {
    const std::string& text = setting->second;
    const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), limit);
    if (fault != std::errc{} || end != text.data() + text.size() || limit < 1 || limit > 32767)
      throw ConfigError("--codec", "fixed16: limit=" + text + " is no whole number from 1 to 32767");
  }
  return std::make_unique<Fixed16>(limit);
}

}  // namespace starling
