// JPEG (libjpeg-turbo) and PNG (libspng) to planar 8-bit pixels of one shape. The kind is told by the first
// bytes, not by the file's name. Torch-free.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "starling/data/image_store.h"

namespace starling {

// Holds what decoding needs again and again. Not thread-safe: one for each batch that is read. After an error it is to be
// thrown away.
class ImageDecoder {
 public:
  ImageDecoder();
  ~ImageDecoder();
  ImageDecoder(const ImageDecoder&) = delete;
  ImageDecoder& operator=(const ImageDecoder&) = delete;

  // The shape that the header announces (grey: 1 channel, everything else: 3). `name` stands first in
  // messages. Errors: DataError for what is neither JPEG nor PNG, or larger than 64 Mpixel.
  ImageShape shape(std::span<const uint8_t> file, const std::string& name);
  // Writes wanted.bytes() planar bytes. An image of another size is scaled to cover it and cropped in the
  // middle; grey and colour are converted into each other, transparency is dropped. Errors: DataError for
  // damaged or cut files.
  void decode(std::span<const uint8_t> file, const std::string& name, ImageShape wanted, uint8_t* out);

 private:
  void decode_jpeg(std::span<const uint8_t> file, const std::string& name, ImageShape wanted, uint8_t* out);
  void decode_png(std::span<const uint8_t> file, const std::string& name, ImageShape wanted, uint8_t* out);
  // scratch_, interleaved, of shape `have` -> out, planar, of shape `wanted` (channels equal).
  void deliver(ImageShape have, ImageShape wanted, uint8_t* out) const;

  void* jpeg_ = nullptr;  // tjhandle
  std::vector<uint8_t> scratch_;
};

}  // namespace starling
