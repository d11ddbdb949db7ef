#include "starling/data/formats/image_store.h"

#include <cstring>

#include "starling/base/check.h"

namespace starling {

MemoryImages::MemoryImages(ImageShape shape, std::vector<uint8_t> pixels, std::vector<uint8_t> labels,
                           int64_t classes, std::vector<std::string> class_names)
    : shape_(shape),
      pixels_(std::move(pixels)),
      labels_(std::move(labels)),
      classes_(classes),
      class_names_(std::move(class_names)) {
  STARLING_CHECK(pixels_.size() == labels_.size() * shape_.bytes(), "{} bytes for {} images", pixels_.size(),
                 labels_.size());
}

void MemoryImages::decode(std::span<const int64_t> indices, uint8_t* out) const {
  const size_t bytes = shape_.bytes();
  for (size_t i = 0; i < indices.size(); ++i) {
    std::memcpy(out + i * bytes, pixels_.data() + static_cast<size_t>(indices[i]) * bytes, bytes);
  }
}

}  // namespace starling
