#include "starling/data/formats/image_source.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "starling/base/check.h"
#include "starling/data/random.h"

namespace starling {
namespace {

// The origin of an augmented image's pixels: (x, y) comes from ((flip ? width - 1 - x : x) + dx, y + dy).
struct Placement {
  int dx = 0;
  int dy = 0;
  bool flip = false;
};

Placement draw_placement(const Augmentation& augmentation, int64_t epoch, int64_t index, int channels) {
  constexpr uint64_t kKey = 0x6175676D656E74ULL;
  SampleRandom random(
      key_of(augmentation.seed + kKey, static_cast<uint64_t>(epoch), static_cast<uint64_t>(index)));
  Placement placement;
  placement.dx = static_cast<int>(random.below(2 * augmentation.pad + 1)) - augmentation.pad;
  placement.dy = static_cast<int>(random.below(2 * augmentation.pad + 1)) - augmentation.pad;
  placement.flip = channels == 3 && random.uniform() < 0.5;
  return placement;
}

// Converts one plane of 8-bit pixels through the table and moves it by `place`. table[0] is black.
void convert_plane(const uint8_t* from, float* to, ImageShape shape, Placement place, const float* table) {
  for (int y = 0; y < shape.height; ++y) {
    float* row = to + static_cast<ptrdiff_t>(y) * shape.width;
    const int from_y = y + place.dy;
    if (from_y < 0 || from_y >= shape.height) {
      std::fill(row, row + shape.width, table[0]);
      continue;
    }
    const uint8_t* line = from + static_cast<ptrdiff_t>(from_y) * shape.width;
    for (int x = 0; x < shape.width; ++x) {
      const int from_x = (place.flip ? shape.width - 1 - x : x) + place.dx;
      row[x] = from_x < 0 || from_x >= shape.width ? table[0] : table[line[from_x]];
    }
  }
}

class ImageSource final : public Source {
 public:
  ImageSource(std::string name, std::shared_ptr<const ImageStore> store, const Normalization& normalization,
              Augmentation augmentation)
      : store_(std::move(store)), augmentation_(augmentation) {
    const ImageShape shape = store_->shape();
    info_.name = std::move(name);
    info_.input_shape = {shape.channels, shape.height, shape.width};
    info_.classes = store_->classes();
    info_.class_names = store_->class_names();
    tables_.resize(static_cast<size_t>(shape.channels));
    for (size_t c = 0; c < tables_.size(); ++c) {
      for (size_t p = 0; p < 256; ++p) {
        tables_[c][p] =
            static_cast<float>((static_cast<double>(p) / 255 - normalization.mean[c]) / normalization.std[c]);
      }
    }
  }

  const SourceInfo& info() const override { return info_; }
  int64_t size() const override { return store_->size(); }

  Batch read(const std::vector<int64_t>& indices, int64_t epoch) const override {
    const ImageShape shape = store_->shape();
    const auto n = static_cast<int64_t>(indices.size());
    for (const int64_t index : indices)
      STARLING_CHECK(index >= 0 && index < size(), "sample {} does not exist: there are {}", index, size());
    std::vector<uint8_t> pixels(indices.size() * shape.bytes());
    store_->decode(indices, pixels.data());
    Batch batch{at::empty({n, shape.channels, shape.height, shape.width}, at::kFloat),
                at::empty({n}, at::kLong)};
    float* out = batch.input.mutable_data_ptr<float>();
    int64_t* target = batch.target.mutable_data_ptr<int64_t>();
    const size_t plane = static_cast<size_t>(shape.height) * static_cast<size_t>(shape.width);
    for (size_t i = 0; i < indices.size(); ++i) {
      const Placement place =
          augmentation_.on ? draw_placement(augmentation_, epoch, indices[i], shape.channels) : Placement{};
      for (size_t c = 0; c < tables_.size(); ++c) {
        const size_t at = i * shape.bytes() + c * plane;
        convert_plane(pixels.data() + at, out + at, shape, place, tables_[c].data());
      }
      target[i] = store_->label(indices[i]);
    }
    return batch;
  }

 private:
  std::shared_ptr<const ImageStore> store_;
  Augmentation augmentation_;
  SourceInfo info_;
  std::vector<std::array<float, 256>> tables_;  // per channel: the normalized value of each pixel value
};

}  // namespace

Normalization no_normalization(int channels) {
  return {std::vector<double>(static_cast<size_t>(channels), 0.0),
          std::vector<double>(static_cast<size_t>(channels), 1.0)};
}

Normalization normalization_for(const ImageStore& store) {
  if (store.shape() == ImageShape{1, 28, 28}) return {{0.1307}, {0.3081}};
  if (store.shape() == ImageShape{3, 32, 32}) return {{0.4914, 0.4822, 0.4465}, {0.2470, 0.2435, 0.2616}};
  return measure_normalization(store, 1024);
}

Normalization measure_normalization(const ImageStore& store, int64_t samples) {
  const ImageShape shape = store.shape();
  const int64_t count = std::min(samples, store.size());
  const size_t plane = static_cast<size_t>(shape.height) * static_cast<size_t>(shape.width);
  std::vector<double> sum(static_cast<size_t>(shape.channels)), square(sum.size());
  std::vector<uint8_t> pixels(shape.bytes());
  for (int64_t i = 0; i < count; ++i) {
    const int64_t index = i * store.size() / count;
    store.decode({&index, 1}, pixels.data());
    for (size_t k = 0; k < pixels.size(); ++k) {
      const double value = pixels[k] / 255.0;
      sum[k / plane] += value;
      square[k / plane] += value * value;
    }
  }
  Normalization result;
  const double n = static_cast<double>(count) * static_cast<double>(plane);
  for (size_t c = 0; c < sum.size(); ++c) {
    const double mean = sum[c] / n;
    result.mean.push_back(mean);
    result.std.push_back(std::max(std::sqrt(std::max(square[c] / n - mean * mean, 0.0)), 1.0 / 255));
  }
  return result;
}

std::shared_ptr<const Source> make_image_source(std::string name, std::shared_ptr<const ImageStore> store,
                                                Normalization normalization, Augmentation augmentation) {
  return std::make_shared<ImageSource>(std::move(name), std::move(store), normalization, augmentation);
}

}  // namespace starling
