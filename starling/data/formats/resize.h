// Scales 8-bit images. Torch-free.
#pragma once

#include <cstdint>

#include "starling/data/formats/image_store.h"

namespace starling {

// Scales an image until it covers `to_shape`, and cuts off the overhang evenly. `from` is interleaved
// (height, width, channels), and `to` is planar (channels, height, width) with as many channels. The filter
// is a triangle. It widens with the scale when the image shrinks, which avoids aliasing, and interpolates
// linearly when the image grows.
void resize_to_cover(const uint8_t* from, ImageShape from_shape, uint8_t* to, ImageShape to_shape);

}  // namespace starling
