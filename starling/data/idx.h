// IDX, the format of MNIST (yann.lecun.com/exdb/mnist): big-endian magic 0x000008dd (unsigned bytes, dd
// dimensions), the dimensions, the bytes. Plain or gzip.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "starling/data/image_store.h"

namespace starling {

struct IdxImages {
  int height = 0;
  int width = 0;
  std::vector<uint8_t> pixels;  // count * height * width
  int64_t count() const { return static_cast<int64_t>(pixels.size()) / (int64_t{height} * width); }
};

// Errors: DataError with file and offset for a wrong magic, absurd dimensions, and files too short or too
// long.
IdxImages read_idx_images(const std::string& path);
std::vector<uint8_t> read_idx_labels(const std::string& path);

// Writes them; gzip where `path` ends in ".gz". Errors: DataError.
void write_idx_images(const std::string& path, const IdxImages& images);
void write_idx_labels(const std::string& path, const std::vector<uint8_t>& labels);

// The four files of MNIST in `dir`: {train,t10k}-{images-idx3,labels-idx1}-ubyte, with '-' or '.' before
// "idx", with or without ".gz". Without both t10k files there is no test part. Classes: ten, or more where
// the labels say so without gaps. Errors: DataError, among them a count of labels that is not the count of
// images, labels out of range.
ImageParts open_idx(const std::string& dir);

}  // namespace starling
