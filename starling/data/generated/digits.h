// Generated digits of ten classes, 28 x 28 pixels. A pen of varying width draws splines whose points are
// moved, rotated, sheared, scaled and bent. Noise is added. The result looks handwritten and is white on
// black, as in MNIST. Torch-free.
#pragma once

#include <cstdint>
#include <memory>

#include "starling/data/formats/image_store.h"

namespace starling {

// The shape of every generated digit.
constexpr ImageShape kDigitShape{1, 28, 28};

// Returns the class of digit `index`. The classes are balanced: each run of ten digits has all classes, in an
// order of its own.
int64_t digit_label(uint64_t seed, int64_t index);
// Draws digit `index` into 28 * 28 bytes. The result is a function of (seed, index).
void draw_digit(uint64_t seed, int64_t index, uint8_t* out);

// Returns a store of `samples` digits, which are drawn when they are read.
std::shared_ptr<const ImageStore> make_digits(uint64_t seed, int64_t samples);

}  // namespace starling
