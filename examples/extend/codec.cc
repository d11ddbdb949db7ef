// A program that adds a codec: each value travels as a 16-bit number of steps of a grid. Error feedback keeps
// the rounding errors of a message and adds them to the next message.
//
//   extend_codec --codec grid:step=0.001 -n 2
#include <torch/nn/init.h>
#include <torch/nn/modules/linear.h>

#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>

#include "starling/codec/codec.h"
#include "starling/codec/codec_spec.h"
#include "starling/codec/message_bytes.h"
#include "starling/starling.h"

namespace {

class Grid final : public starling::Codec {
 public:
  explicit Grid(float step) : step_(step) {}

  std::string name() const override { return "grid"; }
  bool fixed_rate() const override { return true; }
  size_t encoded_bytes(size_t count) const override { return 2 * count; }
  starling::Combining combining() const override { return starling::Combining::kAdded; }

  size_t encode(std::span<const float> in, std::span<std::byte> out) override {
    for (size_t i = 0; i < in.size(); ++i) {
      const float steps = std::nearbyint(in[i] / step_);
      const bool finite = std::isfinite(steps);
      const auto stored =
          static_cast<int16_t>(finite ? std::fmin(std::fmax(steps, -kMost), kMost) : kNotFinite);
      starling::store_value(out.data() + 2 * i, stored);
    }
    return encoded_bytes(in.size());
  }
  void decode(std::span<const std::byte> in, std::span<float> out) const override {
    starling::check_length(name(), in.size(), encoded_bytes(out.size()), out.size());
    for (size_t i = 0; i < out.size(); ++i) out[i] = value(in, i);
  }
  void decode_add(std::span<const std::byte> in, std::span<float> out, float scale) const override {
    starling::check_length(name(), in.size(), encoded_bytes(out.size()), out.size());
    for (size_t i = 0; i < out.size(); ++i) out[i] += scale * value(in, i);
  }

 private:
  static constexpr float kMost = 32767;
  static constexpr float kNotFinite = -32768;  // stands for NaN and infinity

  float value(std::span<const std::byte> in, size_t i) const {
    const auto stored = starling::load_value<int16_t>(in.data() + 2 * i);
    return stored == kNotFinite ? std::numeric_limits<float>::quiet_NaN()
                                : static_cast<float>(stored) * step_;
  }

  const float step_;
};

std::unique_ptr<starling::Codec> make_grid(const starling::CodecSpec& spec,
                                           const std::vector<starling::TensorShape>& /*shapes*/) {
  float step = 1e-3F;
  if (const auto found = spec.settings.find("step"); found != spec.settings.end()) {
    const std::string& text = found->second;
    const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), step);
    if (fault != std::errc() || end != text.data() + text.size() || !(step > 0))
      throw starling::ConfigError("--codec", "codec grid: step = '" + text + "' is not a number above 0");
  }
  return std::make_unique<Grid>(step);
}

struct Net : torch::nn::Module {
  torch::nn::Linear line = register_module("line", torch::nn::Linear(2, 1));
  Net() {
    torch::nn::init::constant_(line->weight, 0.5);
    torch::nn::init::zeros_(line->bias);
  }
  at::Tensor forward(const at::Tensor& x) { return line(x).squeeze(1); }
};

// 32 points of a plane.
std::shared_ptr<const starling::Source> plane() {
  const at::Tensor i = torch::arange(32, torch::kFloat);
  const at::Tensor x = torch::stack({i / 32, (i * i).fmod(32) / 32}, 1);
  return starling::tensor_source(x, x.select(1, 0) * 3 - x.select(1, 1) * 2 + 0.5);
}

at::Tensor squared_error(const at::Tensor& output, const at::Tensor& target) {
  return (output - target).square().mean();
}

}  // namespace

int main(int argc, char** argv) {
  starling::Extensions extensions;
  extensions.codec({.name = "grid", .settings = "step", .error_feedback = true}, make_grid);
  const starling::Settings settings = {
      {"exchange.codec", "grid"}, {"train.global_batch", 16}, {"train.epochs", 50}};
  starling::Run run = starling::init(argc, argv, settings, extensions);
  run.fit(starling::model<Net>(), squared_error, plane());
}
