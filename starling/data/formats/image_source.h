// Makes a Source from an ImageStore: it augments and normalizes images and converts them to fp32 tensors.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "starling/data/formats/image_store.h"
#include "starling/data/source.h"

namespace starling {

// Normalization maps a pixel p of channel c to (p / 255 - mean[c]) / std[c].
struct Normalization {
  std::vector<double> mean;
  std::vector<double> std;
};

// Returns the normalization that only scales to 0 … 1.
Normalization no_normalization(int channels);
// Returns the usual constants if the shape is that of MNIST or CIFAR. Otherwise measures up to 1,024 evenly
// spread samples.
Normalization normalization_for(const ImageStore& store);
// Measures mean and standard deviation over up to `samples` evenly spread images.
Normalization measure_normalization(const ImageStore& store, int64_t samples);

// Augmentation shifts an image randomly by up to `pad` pixels in each direction, with black pixels at the
// border. It also mirrors color images left to right with probability 1/2. The draws depend only on (seed,
// epoch, sample).
struct Augmentation {
  bool on = false;
  int pad = 4;
  uint64_t seed = 0;
};

// Returns a source that reads `store`. The source is thread-safe.
std::shared_ptr<const Source> make_image_source(std::string name, std::shared_ptr<const ImageStore> store,
                                                Normalization normalization, Augmentation augmentation);

}  // namespace starling
