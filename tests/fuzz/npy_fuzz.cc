// Reads any bytes as the samples of a lasso, from a .npy file or a text. The reader must refuse them with a
// DataError, or return the numbers of a rank, and no more of them than the file can have.
#include <string>

#include "starling/base/error.h"
#include "starling/lasso/lasso_data.h"
#include "tests/fuzz/file_in_memory.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace starling;
  static FileInMemory file;
  FuzzInput input(data, size);
  const LabelColumn label = input.byte() % 2 == 0 ? LabelColumn::kLast : LabelColumn::kFirst;
  const int ranks = 1 + input.byte() % 3, rank = input.byte() % ranks;
  const std::string content = input.text(size);
  try {
    const LassoData read = read_lasso_data(file.with(content), label, rank, ranks);
    const SampleRange range = samples_of_rank(read.samples, rank, ranks);
    require_property(read.features >= 0 && read.first == range.begin &&
                     read.count == range.end - range.begin);
    require_property(read.columns.size() == static_cast<size_t>(read.features * read.count));
    require_property(read.targets.size() == static_cast<size_t>(read.count));
    require_property(read.columns.size() <= content.size());
  } catch (const DataError&) {
  }
  return 0;
}
