#include "starling/data/formats/image_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "starling/base/error.h"
#include "starling/data/formats/byte_file.h"
#include "starling/data/formats/image_codec.h"
#include "starling/data/read_place.h"

namespace starling {
namespace {

namespace fs = std::filesystem;
constexpr uint64_t kMaxFile = uint64_t{256} << 20;

bool is_image(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string name = slash == std::string::npos ? path : path.substr(slash + 1);
  if (name.starts_with(".")) return false;
  std::string lower;
  for (const char c : name) lower.push_back(static_cast<char>(std::tolower(static_cast<unsigned char>(c))));
  return lower.ends_with(".jpg") || lower.ends_with(".jpeg") || lower.ends_with(".png");
}

std::vector<std::string> split(const std::string& path) {
  std::vector<std::string> parts;
  for (size_t at = 0; at <= path.size();) {
    const size_t slash = std::min(path.find('/', at), path.size());
    if (slash > at) parts.push_back(path.substr(at, slash - at));
    at = slash + 1;
  }
  return parts;
}

// One image that was found: the folders above it and the location of its bytes.
struct Found {
  std::vector<std::string> folders;
  std::string name;
  // In an archive: the bytes. Empty in a directory: the file `name` below the root is read on demand.
  std::span<const uint8_t> bytes;
  uint64_t offset = 0;
};

struct Listing {
  std::string path;
  std::shared_ptr<const Archive> archive;  // null for a directory
  std::vector<Found> images;
  std::vector<std::vector<std::string>> folders;
};

// Returns false for a symbolic link that leads nowhere or to itself.
bool leads_to_directory(const fs::directory_entry& entry) {
  std::error_code error;
  return entry.is_directory(error);
}

Listing list_directory(const std::string& path) {
  Listing listing{path, nullptr, {}, {}};
  std::error_code error;
  fs::recursive_directory_iterator it(path, fs::directory_options::follow_directory_symlink, error);
  for (; !error && it != fs::recursive_directory_iterator(); it.increment(error)) {
    const std::string inside = fs::path(it->path()).lexically_relative(path).generic_string();
    if (it->path().filename().string().starts_with(".")) {
      if (leads_to_directory(*it)) it.disable_recursion_pending();
      continue;
    }
    std::vector<std::string> parts = split(inside);
    if (leads_to_directory(*it)) {
      if (parts.size() > 8)
        throw DataError(fmt::format("{}: folders are nested too deep", it->path().string()));
      listing.folders.push_back(std::move(parts));
    } else if (is_image(inside)) {
      parts.pop_back();
      listing.images.push_back({std::move(parts), inside, {}, 0});
    }
  }
  if (error) throw DataError(fmt::format("{}: cannot list: {}", path, error.message()));
  return listing;
}

Listing list_archive(const std::string& path) {
  auto archive = std::make_shared<Archive>(path, is_image);
  Listing listing{path, archive, {}, {}};
  for (const std::string& folder : archive->folders()) {
    if (!folder.empty()) listing.folders.push_back(split(folder));
  }
  for (const Archive::Member& member : archive->members()) {
    std::vector<std::string> parts = split(member.path);
    parts.pop_back();
    if (member.bytes.empty()) {
      throw DataError(fmt::format("{}: offset {}: {}: the file is empty", path, member.offset, member.path));
    }
    listing.images.push_back({std::move(parts), member.path, member.bytes, member.offset});
  }
  return listing;
}

bool names_training(const std::string& folder) {
  return folder == "train" || folder == "training";
}
bool names_test(const std::string& folder) {
  return folder == "test" || folder == "testing" || folder == "val" || folder == "valid" ||
         folder == "validation";
}

// Removes a folder that encloses everything.
void strip_common_root(Listing& listing) {
  for (;;) {
    const std::vector<std::string>& first = listing.images.front().folders;
    for (const Found& image : listing.images) {
      if (image.folders.size() < 2 || image.folders[0] != first[0]) return;
    }
    if (names_training(first[0]) || names_test(first[0])) return;
    const std::string root = first[0];
    std::erase_if(listing.folders,
                  [&](const auto& folder) { return folder.size() < 2 || folder[0] != root; });
    for (auto& folder : listing.folders) folder.erase(folder.begin());
    for (Found& image : listing.images) image.folders.erase(image.folders.begin());
  }
}

class FolderImages final : public ImageStore {
 public:
  struct Entry {
    std::string name;
    std::span<const uint8_t> bytes;
    uint64_t offset = 0;
    int64_t label = 0;
  };

  FolderImages(std::string path, std::shared_ptr<const Archive> archive, std::vector<Entry> entries,
               std::vector<std::string> classes)
      : path_(std::move(path)),
        archive_(std::move(archive)),
        entries_(std::move(entries)),
        classes_(std::move(classes)) {}

  void take_shape(std::optional<ImageShape> shape) {
    if (shape) {
      shape_ = *shape;
      return;
    }
    std::vector<uint8_t> file;
    const Entry& first = entries_.front();
    shape_ = ImageDecoder().shape(bytes_of(first, file), name_of(first));
  }
  ImageShape shape() const override { return shape_; }
  int64_t size() const override { return static_cast<int64_t>(entries_.size()); }
  int64_t classes() const override { return static_cast<int64_t>(classes_.size()); }
  std::vector<std::string> class_names() const override { return classes_; }
  int64_t label(int64_t index) const override { return entries_[static_cast<size_t>(index)].label; }
  void decode(std::span<const int64_t> indices, uint8_t* out) const override {
    ImageDecoder decoder;
    std::vector<uint8_t> file;
    for (size_t i = 0; i < indices.size(); ++i) {
      const Entry& entry = entries_[static_cast<size_t>(indices[i])];
      decoder.decode(bytes_of(entry, file), name_of(entry), shape_, out + i * shape_.bytes());
    }
  }

 private:
  std::span<const uint8_t> bytes_of(const Entry& entry, std::vector<uint8_t>& file) const {
    if (archive_) {
      about_to_read(path_, entry.offset);  // the decoder reads the mapping of the file
      return entry.bytes;
    }
    file = ByteFile((fs::path(path_) / entry.name).string()).read_all(kMaxFile);
    return file;
  }
  std::string name_of(const Entry& entry) const {
    if (archive_) return fmt::format("{}: offset {}: {}", path_, entry.offset, entry.name);
    return (fs::path(path_) / entry.name).string();
  }

  std::string path_;
  std::shared_ptr<const Archive> archive_;
  std::vector<Entry> entries_;
  std::vector<std::string> classes_;
  ImageShape shape_;
};

using ClassFolders = std::map<std::string, std::vector<const Found*>>;  // by name, so in the order of labels

// Sorts the images of one part into their classes. `part` is "" if the archive has class folders at its top.
ClassFolders classes_in(const Listing& listing, const std::set<std::string>& part) {
  const size_t depth = part.empty() ? 1 : 2;
  ClassFolders classes;
  for (const auto& folder : listing.folders) {
    if (folder.size() == depth && (part.empty() || part.count(folder[0]) != 0)) classes[folder.back()];
  }
  for (const Found& image : listing.images) {
    if (!part.empty() && !image.folders.empty() && part.count(image.folders[0]) == 0) continue;
    if (image.folders.size() != depth) {
      throw DataError(fmt::format("{}: offset {}: {} is not in a class folder; expected {}CLASS/name.jpg",
                                  listing.path, image.offset, image.name,
                                  part.empty() ? "" : *part.begin() + "/"));
    }
    classes[image.folders.back()].push_back(&image);
  }
  for (const auto& [name, images] : classes) {
    if (images.empty()) {
      throw DataError(fmt::format("{}: the class folder {} holds no JPEG or PNG; remove it or fill it",
                                  listing.path, name));
    }
  }
  return classes;
}

std::shared_ptr<const ImageStore> build(const Listing& listing, ClassFolders folders,
                                        const ImageStore* like) {
  std::vector<std::string> classes;
  if (like != nullptr) {
    classes = like->class_names();
  } else {
    for (const auto& [name, images] : folders) classes.push_back(name);
  }
  std::vector<FolderImages::Entry> entries;
  for (auto& [name, images] : folders) {
    const auto at = std::find(classes.begin(), classes.end(), name);
    if (at == classes.end()) {
      throw DataError(fmt::format("{}: class {} of the test part is not among the {} classes of training",
                                  listing.path, name, classes.size()));
    }
    std::sort(images.begin(), images.end(), [](const Found* a, const Found* b) { return a->name < b->name; });
    for (const Found* image : images) {
      entries.push_back({image->name, image->bytes, image->offset, at - classes.begin()});
    }
  }
  auto store =
      std::make_shared<FolderImages>(listing.path, listing.archive, std::move(entries), std::move(classes));
  store->take_shape(like != nullptr ? std::optional(like->shape()) : std::nullopt);
  return store;
}

}  // namespace

ImageParts open_image_folder(const std::string& path, const ImageStore* like) {
  std::error_code none;
  if (!fs::exists(path, none))
    throw DataError(fmt::format("{}: no such file or directory; check the path", path));
  Listing listing = fs::is_directory(path, none) ? list_directory(path) : list_archive(path);
  if (listing.images.empty()) {
    throw DataError(fmt::format("{}: no JPEG or PNG in it; expected class folders CLASS/name.jpg", path));
  }
  strip_common_root(listing);
  std::set<std::string> train, test;
  for (const Found& image : listing.images) {
    if (image.folders.size() < 2) continue;
    if (names_training(image.folders[0])) train.insert(image.folders[0]);
    if (names_test(image.folders[0])) test.insert(image.folders[0]);
  }
  ImageParts parts;
  if (train.empty() && test.empty()) {
    parts.train = build(listing, classes_in(listing, {}), like);
    return parts;
  }
  if (train.size() > 1 || test.size() > 1) {
    throw DataError(fmt::format("{}: two folders for one part, {}; keep one", path,
                                train.size() > 1 ? "train and training" : "several of test, val, valid"));
  }
  if (train.empty() && like != nullptr) {
    parts.train = build(listing, classes_in(listing, test), like);
    return parts;
  }
  if (train.empty())
    throw DataError(fmt::format("{}: has a folder {}, but none named train", path, *test.begin()));
  parts.train = build(listing, classes_in(listing, train), like);
  if (!test.empty()) parts.test = build(listing, classes_in(listing, test), parts.train.get());
  return parts;
}

}  // namespace starling
