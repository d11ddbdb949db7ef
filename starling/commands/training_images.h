// The training images of `starling autoencoder`.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "starling/data/source.h"
#include "starling/grid/macro_layer.h"
#include "starling/grid/rank_grid.h"
#include "starling/spec/run_spec.h"

namespace starling {

// TrainingImages reads rectangles of the images that a configuration names. Not thread-safe.
class TrainingImages {
 public:
  // Errors: ConfigError if the data has no images; those of open_data().
  explicit TrainingImages(const RunSpec& spec);

  // The size of an image.
  ImageSize size() const;
  // The number of images.
  int64_t count() const { return source_->size(); }
  // The name of the data.
  const std::string& name() const { return source_->info().name; }

  // Returns the pixels `part` of the samples of a step. The samples are in the order of the epochs. Errors:
  // DataError.
  at::Tensor batch(int64_t step, int64_t samples, const PixelRect& part) const;
  // Returns the pixels `part` of the samples first … first + samples − 1. Errors: DataError.
  at::Tensor in_order(int64_t first, int64_t samples, const PixelRect& part) const;
  // Returns a hash of the pixels of part `index` of `parts` parts of the images. The sum over the parts does
  // not depend on their number. It reads the images once. Errors: DataError.
  uint64_t hash(int index, int parts) const;

 private:
  at::Tensor pixels_of_samples(const std::vector<int64_t>& indices, int64_t epoch,
                               const PixelRect& part) const;

  const std::shared_ptr<const Source> source_;
  const uint64_t seed_;
  const Order order_;
};

}  // namespace starling
