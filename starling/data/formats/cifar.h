// Reads the binary version of CIFAR-10 and CIFAR-100 (Krizhevsky, Learning Multiple Layers of Features from
// Tiny Images, 2009). A record holds one label byte (CIFAR-100: coarse, then fine) and 3 x 32 x 32 planar
// pixels.
#pragma once

#include <string>

#include "starling/data/formats/image_store.h"

namespace starling {

// Opens the data set in the folder `dir`. CIFAR-10 consists of data_batch_1.bin … data_batch_5.bin and
// test_batch.bin; the names of its ten classes come from batches.meta.txt if that file exists. CIFAR-100
// consists of train.bin and test.bin; the names of its hundred fine classes come from fine_label_names.txt if
// that file exists. Without the test file, the result has no test part. Errors: DataError that names the file
// if it is missing or cut, or if a label is out of range.
ImageParts open_cifar(const std::string& dir);

}  // namespace starling
