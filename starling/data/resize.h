// Scaling of 8-bit images. Torch-free.
#pragma once

#include <cstdint>

#include "starling/data/image_store.h"

namespace starling {

// from: interleaved (height, width, channels); to: planar (channels, height, width), the same channels. The
// image is scaled until it covers `to_shape` and the overhang is cut off evenly. Triangle filter, as wide as
// the scale asks for when it shrinks (no aliasing), linear interpolation when it grows.
void resize_to_cover(const uint8_t* from, ImageShape from_shape, uint8_t* to, ImageShape to_shape);

}  // namespace starling
