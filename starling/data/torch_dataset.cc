#include "starling/data/torch_dataset.h"

#include "starling/base/error.h"

namespace starling {
namespace {

class SampleSource final : public Source {
 public:
  SampleSource(ReadSamples read, int64_t size, std::string name) : read_(std::move(read)), size_(size) {
    info_.name = std::move(name);
    const Batch first = this->read({0}, 0);
    info_.input_shape = first.input.sizes().slice(1).vec();
  }
  const SourceInfo& info() const override { return info_; }
  int64_t size() const override { return size_; }
  Batch read(const std::vector<int64_t>& indices, int64_t) const override {
    const std::vector<size_t> wanted(indices.begin(), indices.end());
    const std::lock_guard lock(reading_);
    return read_(wanted);
  }

 private:
  ReadSamples read_;
  int64_t size_;
  SourceInfo info_;
  mutable std::mutex reading_;  // data sets of torch::data may keep a state
};

}  // namespace

std::shared_ptr<const Source> source_of_samples(ReadSamples read, int64_t size, std::string name) {
  if (size <= 0)
    throw DataError(name + ": the data set is empty or has no size; a run needs samples with random access");
  return std::make_shared<SampleSource>(std::move(read), size, std::move(name));
}

}  // namespace starling
