// The binary version of CIFAR-10 and CIFAR-100 (Krizhevsky, Learning Multiple Layers of Features from Tiny
// Images, 2009): records of one label byte (CIFAR-100: coarse, then fine) and 3 x 32 x 32 planar pixels.
#pragma once

#include <string>

#include "starling/data/image_store.h"

namespace starling {

// dir: data_batch_1.bin … data_batch_5.bin and test_batch.bin (ten classes; names from batches.meta.txt where
// it is), or train.bin and test.bin (a hundred fine classes; names from fine_label_names.txt). Without the
// test file there is no test part. Errors: DataError with file and offset for a missing or cut file and for
// labels out of range.
ImageParts open_cifar(const std::string& dir);

}  // namespace starling
