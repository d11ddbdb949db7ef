#include "starling/data/formats/cifar.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>

#include "starling/base/error.h"
#include "starling/data/formats/byte_file.h"

namespace starling {
namespace {

constexpr ImageShape kShape{3, 32, 32};
constexpr size_t kPixels = 3 * 32 * 32;
constexpr uint64_t kMaxCifarFile = uint64_t{1} << 32;

struct Layout {
  size_t label_bytes;  // bytes of labels, of which the last is the class
  int64_t classes;
  const char* names;
};
constexpr Layout kCifar10{1, 10, "batches.meta.txt"};
constexpr Layout kCifar100{2, 100, "fine_label_names.txt"};

std::vector<std::string> read_names(const std::string& path, int64_t classes) {
  std::ifstream in(path);
  std::vector<std::string> names;
  for (std::string line; std::getline(in, line);) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (!line.empty()) names.push_back(line);
  }
  if (static_cast<int64_t>(names.size()) != classes) names.clear();
  return names;
}

std::shared_ptr<const ImageStore> open_files(const std::vector<std::string>& paths, const Layout& layout,
                                             const std::vector<std::string>& names) {
  const size_t record = layout.label_bytes + kPixels;
  std::vector<uint8_t> pixels;
  std::vector<uint8_t> labels;
  for (const std::string& path : paths) {
    ByteFile file(path);
    const std::vector<uint8_t> bytes = file.read_all(kMaxCifarFile);
    if (bytes.empty()) file.fail(0, "the file is empty");
    if (bytes.size() % record != 0) {
      file.fail(bytes.size(),
                fmt::format("truncated: the record that begins at {} needs {} bytes; fetch the file again",
                            bytes.size() / record * record, record));
    }
    for (size_t at = 0; at < bytes.size(); at += record) {
      const uint8_t label = bytes[at + layout.label_bytes - 1];
      if (label >= layout.classes) {
        file.fail(at + layout.label_bytes - 1, fmt::format("label {} of record {} is out of range 0 to {}",
                                                           label, at / record, layout.classes - 1));
      }
      labels.push_back(label);
      const auto first = bytes.begin() + static_cast<std::ptrdiff_t>(at + layout.label_bytes);
      pixels.insert(pixels.end(), first, first + kPixels);
    }
  }
  return std::make_shared<MemoryImages>(kShape, std::move(pixels), std::move(labels), layout.classes, names);
}

}  // namespace

ImageParts open_cifar(const std::string& dir) {
  require_folder(dir);
  const auto path_of = [&](const std::string& name) { return (std::filesystem::path(dir) / name).string(); };
  const auto exists = [](const std::string& path) {
    std::error_code none;
    return std::filesystem::exists(path, none);
  };
  const bool hundred = exists(path_of("train.bin")) && !exists(path_of("data_batch_1.bin"));
  const Layout& layout = hundred ? kCifar100 : kCifar10;
  std::vector<std::string> train;
  if (hundred) train.push_back(path_of("train.bin"));
  for (int i = 1; !hundred && i <= 5; ++i) train.push_back(path_of(fmt::format("data_batch_{}.bin", i)));
  const std::string test = path_of(hundred ? "test.bin" : "test_batch.bin");
  const std::vector<std::string> names = read_names(path_of(layout.names), layout.classes);
  ImageParts parts;
  parts.train = open_files(train, layout, names);
  if (exists(test)) parts.test = open_files({test}, layout, names);
  return parts;
}

}  // namespace starling
