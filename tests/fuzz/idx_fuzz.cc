// Reads any bytes as an IDX file of images or of labels, plain or gzip. The reader must refuse them with a
// DataError, or return as many pixels or labels as the header announces, which are equal after writing.
#include <string>

#include "starling/base/error.h"
#include "starling/data/formats/idx.h"
#include "tests/fuzz/file_in_memory.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace starling;
  static FileInMemory file, again;
  FuzzInput input(data, size);
  const bool images = input.byte() % 2 == 0;
  const std::string& path = file.with(input.text(size));
  try {
    if (images) {
      const IdxImages read = read_idx_images(path);
      require_property(read.count() > 0 && read.pixels.size() == static_cast<size_t>(read.count()) *
                                                                     static_cast<size_t>(read.height) *
                                                                     static_cast<size_t>(read.width));
    } else {
      read_idx_labels(path);
    }
  } catch (const DataError&) {
  }
  return 0;
}
