// Reads any bytes as the batches and the names of classes of CIFAR-10 or CIFAR-100. The reader must refuse
// them with a DataError, or return labels within range and pixels for each.
#include <filesystem>
#include <string>
#include <vector>

#include "starling/base/error.h"
#include "starling/data/formats/cifar.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/memory_folder.h"

namespace starling {
namespace {

void check(const ImageStore& images) {
  std::vector<uint8_t> pixels(images.shape().bytes());
  for (int64_t i = 0; i < images.size(); ++i) {
    require_property(images.label(i) >= 0 && images.label(i) < images.classes());
    images.decode(std::vector<int64_t>{i}, pixels.data());
  }
}

}  // namespace
}  // namespace starling

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace starling;
  static const MemoryFolder folders[2];
  FuzzInput input(data, size);
  const bool hundred = input.byte() % 2 == 1;
  const MemoryFolder& folder = folders[hundred ? 1 : 0];
  const std::string names = input.text(input.byte());
  const std::string records = input.text(size);
  if (hundred) {
    folder.write("fine_label_names.txt", names);
    folder.write("train.bin", records);
  } else {
    folder.write("batches.meta.txt", names);
    for (const char part : {'1', '2', '3', '4', '5'}) {
      const std::string name = std::string("data_batch_") + part + ".bin";
      if (part == '1' || !std::filesystem::exists(folder.path() / name))
        folder.write(name, part == '1' ? records : std::string(3073, '\3'));
    }
  }
  try {
    const ImageParts parts = open_cifar(folder.path().string());
    require_property(parts.train != nullptr && parts.test == nullptr);
    check(*parts.train);
  } catch (const DataError&) {
  }
  return 0;
}
