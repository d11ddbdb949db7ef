// Reads any bytes as a file of ratings. The reader must refuse them with a DataError, or return as many
// entries as it announces, each within the announced rows and columns.
#include <string>

#include "starling/base/error.h"
#include "starling/factor/ratings.h"
#include "tests/fuzz/file_in_memory.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace starling;
  static FileInMemory file;
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  try {
    const auto ratings = open_ratings(file.with(bytes));
    int64_t count = 0;
    ratings->visit([&](std::span<const Rating> some) {
      for (const Rating& rating : some)
        require_property(rating.row < ratings->rows() && rating.column < ratings->columns());
      count += static_cast<int64_t>(some.size());
    });
    require_property(count == ratings->count() && count > 0);
  } catch (const DataError&) {
  }
  return 0;
}
