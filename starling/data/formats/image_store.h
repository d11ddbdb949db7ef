// ImageStore holds labeled 8-bit images of one shape, before augmentation and normalization. Torch-free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace starling {

// The shape of an image with 8 bits per channel.
struct ImageShape {
  int channels = 0;  // 1 or 3
  int height = 0;
  int width = 0;
  size_t bytes() const {
    return static_cast<size_t>(channels) * static_cast<size_t>(height) * static_cast<size_t>(width);
  }
  bool operator==(const ImageShape&) const = default;
};

// A set of labeled images. Thread-safe: several prefetch threads read at once.
class ImageStore {
 public:
  virtual ~ImageStore() = default;
  // The shape of every image.
  virtual ImageShape shape() const = 0;
  // The number of images.
  virtual int64_t size() const = 0;
  // The number of classes.
  virtual int64_t classes() const = 0;
  // The names of the classes in the order of their numbers. May be empty.
  virtual std::vector<std::string> class_names() const = 0;
  // Returns the class of image `index`: 0 … classes() - 1.
  virtual int64_t label(int64_t index) const = 0;
  // Writes the images one after another into `out`, planar (channels, height, width): indices.size() *
  // shape().bytes() bytes. Errors: DataError that names the file and the offset.
  virtual void decode(std::span<const int64_t> indices, uint8_t* out) const = 0;
};

// A training part and an optional test part of the same shape and classes.
struct ImageParts {
  std::shared_ptr<const ImageStore> train;
  std::shared_ptr<const ImageStore> test;  // may be null
};

// Images that are held decoded in memory.
class MemoryImages final : public ImageStore {
 public:
  // `pixels` are planar: labels.size() * shape.bytes() bytes.
  MemoryImages(ImageShape shape, std::vector<uint8_t> pixels, std::vector<uint8_t> labels, int64_t classes,
               std::vector<std::string> class_names);
  ImageShape shape() const override { return shape_; }
  int64_t size() const override { return static_cast<int64_t>(labels_.size()); }
  int64_t classes() const override { return classes_; }
  std::vector<std::string> class_names() const override { return class_names_; }
  int64_t label(int64_t index) const override { return labels_[static_cast<size_t>(index)]; }
  void decode(std::span<const int64_t> indices, uint8_t* out) const override;

 private:
  ImageShape shape_;
  std::vector<uint8_t> pixels_;
  std::vector<uint8_t> labels_;
  int64_t classes_;
  std::vector<std::string> class_names_;
};

}  // namespace starling
