// Generated digits: 28 x 28, ten classes, drawn with a pen of varying width along splines whose points are
// moved, turned, sheared, scaled and bent; some noise. Handwritten-like, white on black as in MNIST.
// Torch-free.
#pragma once

#include <cstdint>
#include <memory>

#include "starling/data/image_store.h"

namespace starling {

constexpr ImageShape kDigitShape{1, 28, 28};

// The class of digit `index`: balanced (each run of ten has all classes, in an order of its own).
int64_t digit_label(uint64_t seed, int64_t index);
// Draws digit `index` into 28 * 28 bytes: a function of (seed, index).
void draw_digit(uint64_t seed, int64_t index, uint8_t* out);

// `samples` digits, drawn when they are read.
std::shared_ptr<const ImageStore> make_digits(uint64_t seed, int64_t samples);

}  // namespace starling
