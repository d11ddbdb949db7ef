// Reads and writes IDX, the format of MNIST (yann.lecun.com/exdb/mnist), plain or gzip. A file holds a
// big-endian magic number 0x000008dd (unsigned bytes, dd dimensions), the dimensions and the bytes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "starling/data/formats/image_store.h"

namespace starling {

// Grey images of one size.
struct IdxImages {
  int height = 0;
  int width = 0;
  std::vector<uint8_t> pixels;  // count * height * width
  int64_t count() const { return static_cast<int64_t>(pixels.size()) / (int64_t{height} * width); }
};

// Reads images. Errors: DataError with file and offset for a wrong magic number, impossible dimensions, or a
// file that is too short or too long.
IdxImages read_idx_images(const std::string& path);
// Reads labels. Errors: as read_idx_images().
std::vector<uint8_t> read_idx_labels(const std::string& path);

// Writes images, as gzip if `path` ends in ".gz". Errors: DataError.
void write_idx_images(const std::string& path, const IdxImages& images);
// Writes labels, as gzip if `path` ends in ".gz". Errors: DataError.
void write_idx_labels(const std::string& path, const std::vector<uint8_t>& labels);

// Opens the four files of MNIST in `dir`: {train,t10k}-{images-idx3,labels-idx1}-ubyte, with '-' or '.'
// before "idx", with or without ".gz". If both t10k files are missing, the result has no test part. There are
// ten classes, or more if the labels are larger and leave out at most one number. Errors: DataError, for
// example if the number of labels differs from the number of images, or a label is out of range.
ImageParts open_idx(const std::string& dir);

}  // namespace starling
