// Reads images in class folders, from a directory or an archive: CLASS/name.jpg, or train/CLASS/name.jpg and
// test/CLASS/name.jpg. The name training also stands for train, and testing, val, valid and validation stand
// for test. Folders may enclose all of these. Torch-free.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "starling/data/formats/archive.h"
#include "starling/data/formats/image_store.h"

namespace starling {

// Opens a directory, a .tar, a .tar.gz and so on. Classes are the folders' names in byte order, and samples
// are ordered by (class, name). All images take the shape of the first (image_codec.h). Files other than JPEG
// and PNG are ignored. `like` is null or a store whose shape and classes the result takes, for a test set
// that is opened on its own. Errors: DataError for a missing path, a class folder without images, and images
// outside class folders. DataError also for a test class that the training part lacks, a test part without a
// training part, and two folders for one part. Damage inside an image is found when that image is read.
ImageParts open_image_folder(const std::string& path, const ImageStore* like = nullptr);

}  // namespace starling
