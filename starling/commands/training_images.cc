#include "starling/commands/training_images.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <numeric>

#include "starling/base/error.h"
#include "starling/base/keyed_random.h"
#include "starling/data/loader.h"
#include "starling/data/source_factory.h"
#include "starling/net/security/data_security.h"

namespace starling {
namespace {

constexpr int64_t kHashedTogether = 64;  // images

}  // namespace

TrainingImages::TrainingImages(const RunSpec& spec)
    : source_(
          open_data(spec.data, spec.train.seed, spec.model.tokens, security_named(spec.comm.security)).train),
      seed_(spec.train.seed),
      order_(spec.data.order) {
  const SourceInfo& info = source_->info();
  if (info.text || info.input_shape.size() != 3)
    throw ConfigError("--data", fmt::format("an autoencoder reads images, and {} has none", info.name));
}

ImageSize TrainingImages::size() const {
  const std::vector<int64_t>& shape = source_->info().input_shape;
  return {shape[0], shape[1], shape[2]};
}

at::Tensor TrainingImages::batch(int64_t step, int64_t samples, const PixelRect& part) const {
  std::vector<at::Tensor> pieces;  // one per epoch that the step has samples of
  for (int64_t at = step * samples, end = at + samples; at < end;) {
    const int64_t epoch = at / count();
    std::vector<int64_t> indices;
    for (; at < end && at / count() == epoch; ++at)
      indices.push_back(sample_at(seed_, epoch, at % count(), count(), order_));
    pieces.push_back(pixels_of_samples(indices, epoch, part));
  }
  return at::cat(pieces);
}

at::Tensor TrainingImages::in_order(int64_t first, int64_t samples, const PixelRect& part) const {
  std::vector<int64_t> indices(static_cast<size_t>(samples));
  std::iota(indices.begin(), indices.end(), first);
  return pixels_of_samples(indices, 0, part);
}

uint64_t TrainingImages::hash(int index, int parts) const {
  const ImageSize image = size();
  const PixelRange samples = part_of_axis(count(), parts, index);
  uint64_t sum = 0;
  for (int64_t first = samples.begin; first < samples.end; first += kHashedTogether) {
    const int64_t together = std::min(kHashedTogether, samples.end - first);
    const at::Tensor pixels =
        in_order(first, together, {{0, image.height}, {0, image.width}}).to(at::kFloat).contiguous();
    const auto* pixel = pixels.const_data_ptr<float>();
    const int64_t numbers = image.channels * image.height * image.width;
    for (int64_t n = 0; n < together; ++n) {
      uint64_t hash = mix64(static_cast<uint64_t>(first + n) + kGolden);
      for (int64_t i = 0; i < numbers; ++i)
        hash = mix64(hash + kGolden + std::bit_cast<uint32_t>(pixel[n * numbers + i]));
      sum += hash;
    }
  }
  return sum;
}

at::Tensor TrainingImages::pixels_of_samples(const std::vector<int64_t>& indices, int64_t epoch,
                                             const PixelRect& part) const {
  return source_->read(indices, epoch)
      .input.narrow(2, part.rows.begin, part.rows.count())
      .narrow(3, part.columns.begin, part.columns.count());
}

}  // namespace starling
