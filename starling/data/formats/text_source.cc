#include "starling/data/formats/text_source.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "starling/base/check.h"
#include "starling/data/random.h"

namespace starling {
namespace {

class TextSource final : public Source {
 public:
  TextSource(std::string name, std::shared_ptr<const TextStore> store, int64_t tokens, bool shift_windows,
             uint64_t seed)
      : store_(std::move(store)), tokens_(tokens), shift_windows_(shift_windows), seed_(seed) {
    info_.name = std::move(name);
    info_.input_shape = {tokens};
    info_.classes = store_->vocabulary().size();
    info_.text = true;
    info_.vocabulary = store_->vocabulary().text();
  }

  const SourceInfo& info() const override { return info_; }
  int64_t size() const override { return store_->samples(tokens_); }

  Batch read(const std::vector<int64_t>& indices, int64_t epoch) const override {
    constexpr uint64_t kKey = 0x7368696674ULL;
    const int64_t shift =
        shift_windows_ ? SampleRandom(key_of(seed_, static_cast<uint64_t>(epoch), kKey)).below(tokens_) : 0;
    const auto n = static_cast<int64_t>(indices.size());
    Batch batch{at::empty({n, tokens_}, at::kLong), at::empty({n, tokens_}, at::kLong)};
    int64_t* input = batch.input.mutable_data_ptr<int64_t>();
    int64_t* target = batch.target.mutable_data_ptr<int64_t>();
    std::vector<int64_t> window(static_cast<size_t>(tokens_) + 1);
    for (const int64_t index : indices) {
      STARLING_CHECK(index >= 0 && index < size(), "sample {} does not exist: there are {}", index, size());
      store_->read(index, tokens_, shift, window.data());
      input = std::copy(window.begin(), window.end() - 1, input);
      target = std::copy(window.begin() + 1, window.end(), target);
    }
    return batch;
  }

 private:
  std::shared_ptr<const TextStore> store_;
  int64_t tokens_;
  bool shift_windows_;
  uint64_t seed_;
  SourceInfo info_;
};

}  // namespace

std::shared_ptr<const Source> make_text_source(std::string name, std::shared_ptr<const TextStore> store,
                                               int64_t tokens, bool shift_windows, uint64_t seed) {
  return std::make_shared<TextSource>(std::move(name), std::move(store), tokens, shift_windows, seed);
}

}  // namespace starling
