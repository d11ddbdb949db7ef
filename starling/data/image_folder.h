// Images in class folders, in a directory or an archive: CLASS/name.jpg, or train/CLASS/name.jpg and
// test/CLASS/name.jpg (val and valid stand for test). One folder around all of it is allowed. Torch-free.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "starling/data/archive.h"
#include "starling/data/image_store.h"

namespace starling {

// path: a directory, .tar, .tar.gz … Classes are the folders' names in byte order, samples are ordered by
// (class, name). All images take the shape of the first (image_codec.h). JPEG and PNG only; other files are
// passed over. like: null, or a store that tells shape and classes (a test set opened on its own). Errors:
// DataError for a missing path, a class folder without images, images outside class folders, a test class
// that training lacks. Damage inside an image shows when that image is read.
ImageParts open_image_folder(const std::string& path, const ImageStore* like = nullptr);

}  // namespace starling
