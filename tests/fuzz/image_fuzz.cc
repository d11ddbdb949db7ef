// Decodes any bytes as JPEG or PNG. The decoder must refuse them with a DataError, or write exactly the
// pixels of the wanted shape. Images of more than 65,536 bytes of pixels are not decoded, because they would
// take most of the time. A progressive JPEG has at most 500 scans, so none takes hours.
#include <string>
#include <vector>

#include "starling/base/error.h"
#include "starling/data/formats/image_codec.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace starling;
  FuzzInput input(data, size);
  const ImageShape wanted{input.byte() % 2 == 0 ? 1 : 3, 1 + input.byte() % 32, 1 + input.byte() % 32};
  const std::string text = input.text(size);
  const std::span<const uint8_t> file(reinterpret_cast<const uint8_t*>(text.data()), text.size());
  try {
    ImageDecoder decoder;
    const ImageShape shape = decoder.shape(file, "f");
    require_property(shape.channels == 1 || shape.channels == 3);
    require_property(shape.height > 0 && shape.width > 0);
    if (shape.bytes() > 1 << 16) return 0;
    std::vector<uint8_t> pixels(wanted.bytes());  // AddressSanitizer guards its end
    decoder.decode(file, "f", wanted, pixels.data());
  } catch (const DataError&) {
  }
  return 0;
}
