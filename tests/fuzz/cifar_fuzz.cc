// Reads any bytes as the batches and the names of classes of CIFAR-10 or CIFAR-100. The reader must refuse
// them with a DataError, or return labels within range and pixels for each.
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "starling/base/error.h"
#include "starling/data/formats/cifar.h"
#include "tests/fuzz/input.h"

namespace starling {
namespace {

void write(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

// A folder of this process. It is removed when the process ends normally.
struct Folder {
  Folder() {
    std::string pattern = std::filesystem::exists("/dev/shm") ? "/dev/shm/fuzz-XXXXXX" : "/tmp/fuzz-XXXXXX";
    require_property(::mkdtemp(pattern.data()) != nullptr);
    path = pattern;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  std::filesystem::path path;
};

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
  static const Folder folders[2];
  FuzzInput input(data, size);
  const bool hundred = input.byte() % 2 == 1;
  const std::filesystem::path& folder = folders[hundred ? 1 : 0].path;
  const std::string names = input.text(input.byte());
  const std::string records = input.text(size);
  if (hundred) {
    write(folder / "fine_label_names.txt", names);
    write(folder / "train.bin", records);
  } else {
    write(folder / "batches.meta.txt", names);
    for (const char* part : {"1", "2", "3", "4", "5"}) {
      if (*part == '1' || !std::filesystem::exists(folder / ("data_batch_" + std::string(part) + ".bin")))
        write(folder / ("data_batch_" + std::string(part) + ".bin"),
              *part == '1' ? records : std::string(3073, '\3'));
    }
  }
  try {
    const ImageParts parts = open_cifar(folder.string());
    require_property(parts.train != nullptr && parts.test == nullptr);
    check(*parts.train);
  } catch (const DataError&) {
  }
  return 0;
}
