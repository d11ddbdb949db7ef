#include "starling/data/formats/idx.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "starling/base/error.h"
#include "starling/data/formats/byte_file.h"

namespace starling {
namespace {

constexpr uint32_t kImagesMagic = 0x00000803;
constexpr uint32_t kLabelsMagic = 0x00000801;
constexpr uint32_t kMaxIdxSide = 8192;
constexpr uint64_t kMaxBytes = uint64_t{1} << 38;

void expect_magic(ByteFile& file, uint32_t wanted, const char* what) {
  const uint32_t magic = file.read_u32("the magic number");
  if (magic == wanted) return;
  file.fail(
      0, fmt::format("magic number 0x{:08x}, an IDX file of {} begins with 0x{:08x}; is this another file?",
                     magic, what, wanted));
}

// Returns the name of the file that exists in `dir`, or "" if none does.
std::string find_file(const std::string& dir, const std::string& stem, const std::string& suffix) {
  for (const char* joint : {"-", "."}) {
    for (const char* packed : {"", ".gz"}) {
      const std::string path = (std::filesystem::path(dir) / (stem + joint + suffix + packed)).string();
      std::error_code none;
      if (std::filesystem::exists(path, none)) return path;
    }
  }
  return "";
}

// Returns the number of classes that the labels imply. A label far beyond the number of distinct labels
// counts as damage.
int64_t classes_of(const std::vector<uint8_t>& labels, const std::string& path) {
  std::array<bool, 256> seen{};
  for (const uint8_t label : labels) seen[label] = true;
  const int64_t distinct = std::count(seen.begin(), seen.end(), true);
  const int64_t bound = std::max<int64_t>(10, distinct + 1);
  int64_t classes = 10;
  for (size_t i = 0; i < labels.size(); ++i) {
    if (labels[i] >= bound) {
      throw DataError(fmt::format(
          "{}: offset {}: label {} of sample {} is out of range: the file has {} different labels", path,
          8 + i, labels[i], i, distinct));
    }
    classes = std::max<int64_t>(classes, labels[i] + 1);
  }
  return classes;
}

std::shared_ptr<const ImageStore> open_part(const std::string& images_path, const std::string& labels_path,
                                            int64_t classes) {
  IdxImages images = read_idx_images(images_path);
  std::vector<uint8_t> labels = read_idx_labels(labels_path);
  if (images.count() != static_cast<int64_t>(labels.size())) {
    throw DataError(
        fmt::format("{}: offset 4: {} labels, but {} images in {}; the two files do not belong together",
                    labels_path, labels.size(), images.count(), images_path));
  }
  const int64_t own = classes_of(labels, labels_path);
  if (classes == 0) classes = own;
  for (size_t i = 0; i < labels.size(); ++i) {
    if (labels[i] < classes) continue;
    throw DataError(
        fmt::format("{}: offset {}: label {} of sample {} is out of range: the training part has {} classes",
                    labels_path, 8 + i, labels[i], i, classes));
  }
  return std::make_shared<MemoryImages>(ImageShape{1, images.height, images.width}, std::move(images.pixels),
                                        std::move(labels), classes, std::vector<std::string>{});
}

std::vector<uint8_t> header(std::initializer_list<uint32_t> words) {
  std::vector<uint8_t> bytes;
  for (const uint32_t word : words) {
    for (int shift = 24; shift >= 0; shift -= 8) bytes.push_back(static_cast<uint8_t>(word >> shift));
  }
  return bytes;
}

void write_file(const std::string& path, const std::vector<uint8_t>& head, const std::vector<uint8_t>& body) {
  gzFile file = gzopen(path.c_str(), path.ends_with(".gz") ? "wb6" : "wbT");
  if (file == nullptr)
    throw DataError(fmt::format("{}: cannot write; check the folder and its rights", path));
  bool whole = true;
  for (const std::vector<uint8_t>* part : {&head, &body}) {
    for (size_t done = 0; whole && done < part->size();) {
      const size_t n = std::min(part->size() - done, size_t{1} << 24);
      whole = gzwrite(file, part->data() + done, static_cast<unsigned>(n)) == static_cast<int>(n);
      done += n;
    }
  }
  whole = (gzclose(file) == Z_OK) && whole;
  if (!whole) throw DataError(fmt::format("{}: cannot write all of it; is the disk full?", path));
}

}  // namespace

IdxImages read_idx_images(const std::string& path) {
  ByteFile file(path);
  expect_magic(file, kImagesMagic, "images");
  const uint64_t count = file.read_u32("the number of images");
  const uint32_t height = file.read_u32("the height");
  const uint32_t width = file.read_u32("the width");
  if (height == 0 || width == 0 || height > kMaxIdxSide || width > kMaxIdxSide) {
    file.fail(8,
              fmt::format("images of {} x {} pixels; 1 to {} a side are read", height, width, kMaxIdxSide));
  }
  if (count == 0) file.fail(4, "no images");
  const uint64_t bytes = count * height * width;  // at most 2^32 * 2^26
  if (bytes > kMaxBytes)
    file.fail(4, fmt::format("{} images of {} x {}: too large to hold", count, height, width));
  IdxImages images{static_cast<int>(height), static_cast<int>(width), {}};
  images.pixels = file.read(bytes, fmt::format("{} images of {} x {}", count, height, width));
  file.expect_end();
  return images;
}

std::vector<uint8_t> read_idx_labels(const std::string& path) {
  ByteFile file(path);
  expect_magic(file, kLabelsMagic, "labels");
  const uint32_t count = file.read_u32("the number of labels");
  std::vector<uint8_t> labels = file.read(count, fmt::format("{} labels", count));
  file.expect_end();
  return labels;
}

void write_idx_images(const std::string& path, const IdxImages& images) {
  write_file(path,
             header({kImagesMagic, static_cast<uint32_t>(images.count()),
                     static_cast<uint32_t>(images.height), static_cast<uint32_t>(images.width)}),
             images.pixels);
}

void write_idx_labels(const std::string& path, const std::vector<uint8_t>& labels) {
  write_file(path, header({kLabelsMagic, static_cast<uint32_t>(labels.size())}), labels);
}

ImageParts open_idx(const std::string& dir) {
  require_folder(dir);
  ImageParts parts;
  for (const char* part : {"train", "t10k"}) {
    const std::string images = find_file(dir, std::string(part) + "-images", "idx3-ubyte");
    const std::string labels = find_file(dir, std::string(part) + "-labels", "idx1-ubyte");
    if (images.empty() && labels.empty() && parts.train) return parts;
    if (images.empty() || labels.empty()) {
      const char* missing = images.empty() ? "images-idx3-ubyte" : "labels-idx1-ubyte";
      throw DataError(
          fmt::format("{}: the folder has no {}-{} (or with .gz, or '.' before idx); check the path", dir,
                      part, missing));
    }
    (parts.train ? parts.test : parts.train) =
        open_part(images, labels, parts.train ? parts.train->classes() : 0);
  }
  if (!(parts.train->shape() == parts.test->shape())) {
    throw DataError(fmt::format("{}: training images are {} x {}, test images {} x {}", dir,
                                parts.train->shape().height, parts.train->shape().width,
                                parts.test->shape().height, parts.test->shape().width));
  }
  return parts;
}

}  // namespace starling
