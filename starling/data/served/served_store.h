// What a data server reads from: samples, or blocks of a text, as records of one length. Torch-free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "starling/data/formats/image_store.h"
#include "starling/data/formats/text_store.h"
#include "starling/data/served/served_protocol.h"

namespace starling {

// One part of what is served. Thread-safe: the threads of several connections read at once.
class ServedStore {
 public:
  virtual ~ServedStore() = default;
  // What readers are told about the part.
  virtual ServedPart described() const = 0;
  // Writes the records one after another: indices.size() * described().record_bytes() bytes. Errors:
  // DataError that names the file and the offset.
  virtual void read(std::span<const int64_t> indices, std::byte* out) const = 0;
  // The images of the part, whose classes readers ask for; null if it holds no images.
  virtual const ImageStore* images() const { return nullptr; }
};

// The training part, and the test part if there is one.
using ServedStores = std::vector<std::shared_ptr<const ServedStore>>;

// Returns images for a server. A record is an image, planar.
ServedStores served_stores(const ImageParts& parts);
// Returns texts for a server. A record is a block of kServedBlock ids, each as u32. Zeros fill the last
// block. The stores hold a copy of all ids (8 bytes each).
ServedStores served_stores(const TextParts& parts);

}  // namespace starling
