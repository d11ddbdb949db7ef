// ImageSource: an ImageStore as a Source: augmentation and normalisation on the way to fp32 tensors.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "starling/data/image_store.h"
#include "starling/data/source.h"

namespace starling {

// A pixel p of channel c becomes (p / 255 - mean[c]) / std[c].
struct Normalization {
  std::vector<double> mean;
  std::vector<double> std;
};

// No change but the scaling to 0 … 1.
Normalization no_normalization(int channels);
// The usual constants where the shape is that of MNIST or CIFAR; else measured on up to 1,024 samples, evenly
// spread.
Normalization normalization_for(const ImageStore& store);
Normalization measure_normalization(const ImageStore& store, int64_t samples);

// Random shift by up to `pad` pixels each way (what comes in is black), and for colour images a flip by the
// vertical axis every second time. Drawn from (seed, epoch, sample).
struct Augmentation {
  bool on = false;
  int pad = 4;
  uint64_t seed = 0;
};

std::shared_ptr<const Source> make_image_source(std::string name, std::shared_ptr<const ImageStore> store,
                                                Normalization normalization, Augmentation augmentation);

}  // namespace starling
