// Decodes JPEG (libjpeg-turbo) and PNG (libspng) into planar 8-bit pixels of one shape. The file's first
// bytes give its format; its name does not matter. Torch-free.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "starling/data/formats/image_store.h"

namespace starling {

// Returns whether the first bytes of a file are those of a JPEG or a PNG.
bool has_image_magic(std::span<const uint8_t> file);

// ImageDecoder holds the buffers that decoding reuses. Not thread-safe: make one for each batch that is read.
// Discard the decoder after an error.
class ImageDecoder {
 public:
  ImageDecoder();
  ~ImageDecoder();
  ImageDecoder(const ImageDecoder&) = delete;
  ImageDecoder& operator=(const ImageDecoder&) = delete;

  // Returns the shape that the file's header states: 1 channel for grey images, otherwise 3. Messages begin
  // with `name`. Errors: DataError if the file is neither JPEG nor PNG, has more than 2^26 pixels, or has a
  // side of more than 65,500 pixels.
  ImageShape shape(std::span<const uint8_t> file, const std::string& name);
  // Writes wanted.bytes() planar bytes. An image of another size is scaled until it covers the wanted size,
  // and then cropped in the middle. Grey and color are converted into each other, and transparency is
  // dropped. Errors: DataError for a damaged or cut file, and for a JPEG of more than 500 scans.
  void decode(std::span<const uint8_t> file, const std::string& name, ImageShape wanted, uint8_t* out);

 private:
  void decode_jpeg(std::span<const uint8_t> file, const std::string& name, ImageShape wanted, uint8_t* out);
  void decode_png(std::span<const uint8_t> file, const std::string& name, ImageShape wanted, uint8_t* out);
  // Converts scratch_, which is interleaved and of shape `have`, into planar pixels of shape `wanted`. Both
  // shapes have the same number of channels.
  void deliver(ImageShape have, ImageShape wanted, uint8_t* out) const;

  void* jpeg_ = nullptr;  // tjhandle
  std::vector<uint8_t> scratch_;
};

}  // namespace starling
