#include "starling/data/generated/digits.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <vector>

#include "starling/data/generated/digit_strokes.h"
#include "starling/data/random.h"

namespace starling {
namespace {

constexpr uint64_t kDigitsKey = 0x646967697473ULL;
constexpr int kSide = 28;
using Canvas = std::array<float, kSide * kSide>;  // ink, 0 … 1

// How one sample is written: an affine map about the middle and a slow wave on top of it.
struct Hand {
  double xx, xy, yx, yy, dx, dy;
  double bend_x, bend_y, wave_x, wave_y, phase_x, phase_y;

  explicit Hand(SampleRandom& r) {
    const double angle = 0.13 * r.normal(), shear = 0.16 * r.normal();
    const double wide = r.uniform(0.62, 1.05) * 19, high = r.uniform(0.82, 1.08) * 19;  // pixels
    xx = wide * std::cos(angle);
    xy = high * (shear * std::cos(angle) - std::sin(angle));
    yx = wide * std::sin(angle);
    yy = high * (shear * std::sin(angle) + std::cos(angle));
    dx = kSide / 2.0 + 1.3 * r.normal();
    dy = kSide / 2.0 + 1.3 * r.normal();
    bend_x = 0.035 * r.normal();
    bend_y = 0.035 * r.normal();
    wave_x = r.uniform(0.6, 1.4);
    wave_y = r.uniform(0.6, 1.4);
    phase_x = r.uniform();
    phase_y = r.uniform();
  }

  StrokePoint place(StrokePoint p) const {
    constexpr double kTurn = 2 * std::numbers::pi;
    const double x = p.x - 0.5 + bend_x * std::sin(kTurn * (wave_x * p.y + phase_x));
    const double y = p.y - 0.5 + bend_y * std::sin(kTurn * (wave_y * p.x + phase_y));
    return {xx * x + xy * y + dx, yx * x + yy * y + dy};
  }
};

// Draws a line with round ends and a soft edge of one pixel. It touches only the pixels around the line.
void draw_line(Canvas& canvas, StrokePoint a, StrokePoint b, double radius) {
  const double reach = radius + 1;
  const auto bound = [](double v) { return std::clamp(static_cast<int>(std::floor(v)), 0, kSide - 1); };
  const int x0 = bound(std::min(a.x, b.x) - reach), x1 = bound(std::max(a.x, b.x) + reach);
  const int y0 = bound(std::min(a.y, b.y) - reach), y1 = bound(std::max(a.y, b.y) + reach);
  const double lx = b.x - a.x, ly = b.y - a.y;
  const double length2 = std::max(lx * lx + ly * ly, 1e-12);
  for (int y = y0; y <= y1; ++y) {
    for (int x = x0; x <= x1; ++x) {
      const double px = x + 0.5 - a.x, py = y + 0.5 - a.y;
      const double t = std::clamp((px * lx + py * ly) / length2, 0.0, 1.0);
      const double distance = std::hypot(px - t * lx, py - t * ly);
      const float ink = static_cast<float>(std::clamp(radius + 0.5 - distance, 0.0, 1.0));
      float& pixel = canvas[static_cast<size_t>(y) * kSide + x];
      pixel = std::max(pixel, ink);
    }
  }
}

// Draws the Catmull-Rom spline through the points, each transformed by `hand`.
void draw_stroke(Canvas& canvas, const Stroke& stroke, const Hand& hand, double radius) {
  constexpr int kPieces = 5;
  const auto at = [&](ptrdiff_t i) {
    return stroke[static_cast<size_t>(
        std::clamp<ptrdiff_t>(i, 0, static_cast<ptrdiff_t>(stroke.size()) - 1))];
  };
  StrokePoint before = hand.place(stroke.front());
  for (ptrdiff_t i = 0; i + 1 < static_cast<ptrdiff_t>(stroke.size()); ++i) {
    const StrokePoint p[4] = {at(i - 1), at(i), at(i + 1), at(i + 2)};
    for (int k = 1; k <= kPieces; ++k) {
      const double t = static_cast<double>(k) / kPieces, t2 = t * t, t3 = t2 * t;
      const auto blend = [&](double a, double b, double c, double d) {
        return 0.5 * (2 * b + (c - a) * t + (2 * a - 5 * b + 4 * c - d) * t2 + (3 * b - a - 3 * c + d) * t3);
      };
      const StrokePoint next =
          hand.place({blend(p[0].x, p[1].x, p[2].x, p[3].x), blend(p[0].y, p[1].y, p[2].y, p[3].y)});
      draw_line(canvas, before, next, radius);
      before = next;
    }
  }
}

void draw(const Glyph& glyph, SampleRandom& random, uint8_t* out) {
  const Hand hand(random);
  Canvas canvas{};
  const double radius = random.uniform(0.65, 1.75);
  for (Stroke stroke : glyph) {
    for (StrokePoint& p : stroke) p = {p.x + 0.028 * random.normal(), p.y + 0.028 * random.normal()};
    draw_stroke(canvas, stroke, hand, radius * random.uniform(0.9, 1.1));
  }
  if (random.uniform() < 0.08) {  // a stray line
    const StrokePoint a{random.uniform(2, 26), random.uniform(2, 26)};
    draw_line(canvas, a, {a.x + 2.5 * random.normal(), a.y + 2.5 * random.normal()}, 0.6 * radius);
  }
  const double ink = random.uniform(0.75, 1.0), noise = random.uniform(0.0, 0.07);
  for (size_t i = 0; i < canvas.size(); ++i) {
    const double value = ink * static_cast<double>(canvas[i]) + noise * random.normal();
    out[i] = static_cast<uint8_t>(std::clamp(std::lround(255 * value), 0L, 255L));
  }
}

// Returns all forms of all digits. A store makes them once; the free functions make them for each call.
std::array<std::vector<Glyph>, 10> all_forms() {
  std::array<std::vector<Glyph>, 10> forms;
  for (int digit = 0; digit < 10; ++digit) forms[static_cast<size_t>(digit)] = glyphs_of(digit);
  return forms;
}

void draw_from(const std::vector<Glyph>& forms, uint64_t seed, int64_t index, uint8_t* out) {
  SampleRandom random(key_of(seed, static_cast<uint64_t>(index), kDigitsKey));
  draw(forms[static_cast<size_t>(random.below(static_cast<int64_t>(forms.size())))], random, out);
}

class Digits final : public ImageStore {
 public:
  Digits(uint64_t seed, int64_t samples) : seed_(seed), samples_(samples), forms_(all_forms()) {}
  ImageShape shape() const override { return kDigitShape; }
  int64_t size() const override { return samples_; }
  int64_t classes() const override { return 10; }
  std::vector<std::string> class_names() const override {
    return {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"};
  }
  int64_t label(int64_t index) const override { return digit_label(seed_, index); }
  void decode(std::span<const int64_t> indices, uint8_t* out) const override {
    for (const int64_t index : indices) {
      draw_from(forms_[static_cast<size_t>(digit_label(seed_, index))], seed_, index, out);
      out += kDigitShape.bytes();
    }
  }

 private:
  uint64_t seed_;
  int64_t samples_;
  std::array<std::vector<Glyph>, 10> forms_;
};

}  // namespace

int64_t digit_label(uint64_t seed, int64_t index) {
  std::array<int64_t, 10> classes{0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  SampleRandom random(key_of(seed, static_cast<uint64_t>(index / 10), kDigitsKey + 1));
  for (int64_t i = 9; i > 0; --i)
    std::swap(classes[static_cast<size_t>(i)], classes[static_cast<size_t>(random.below(i + 1))]);
  return classes[static_cast<size_t>(index % 10)];
}

void draw_digit(uint64_t seed, int64_t index, uint8_t* out) {
  draw_from(glyphs_of(static_cast<int>(digit_label(seed, index))), seed, index, out);
}

std::shared_ptr<const ImageStore> make_digits(uint64_t seed, int64_t samples) {
  return std::make_shared<Digits>(seed, samples);
}

}  // namespace starling
