#include "starling/data/served/served_store.h"

#include <algorithm>
#include <utility>

#include "starling/net/wire.h"

namespace starling {
namespace {

class ImagesToServe final : public ServedStore {
 public:
  explicit ImagesToServe(std::shared_ptr<const ImageStore> store) : store_(std::move(store)) {}

  ServedPart described() const override {
    ServedPart part;
    part.shape = store_->shape();
    part.size = store_->size();
    part.classes = store_->classes();
    part.class_names = store_->class_names();
    return part;
  }
  void read(std::span<const int64_t> indices, std::byte* out) const override {
    store_->decode(indices, reinterpret_cast<uint8_t*>(out));
  }
  const ImageStore* images() const override { return store_.get(); }

 private:
  std::shared_ptr<const ImageStore> store_;
};

class TextToServe final : public ServedStore {
 public:
  explicit TextToServe(const TextStore& store) {
    part_.kind = ServedKind::kText;
    part_.characters = store.samples(1) + 1;
    part_.vocabulary = store.vocabulary().text();
    part_.size = (part_.characters + kServedBlock - 1) / kServedBlock;
    ids_.resize(static_cast<size_t>(part_.characters));
    store.read(0, part_.characters - 1, 0, ids_.data());
  }

  ServedPart described() const override { return part_; }
  void read(std::span<const int64_t> indices, std::byte* out) const override {
    for (const int64_t block : indices) {
      const int64_t begin = block * kServedBlock;
      for (int64_t i = begin; i < begin + kServedBlock; ++i, out += sizeof(uint32_t)) {
        const bool within = i < part_.characters;
        store_le(out, within ? static_cast<uint32_t>(ids_[static_cast<size_t>(i)]) : uint32_t{0});
      }
    }
  }

 private:
  ServedPart part_;
  std::vector<int64_t> ids_;
};

template <typename Served, typename Store>
void add(ServedStores& stores, const Store& store) {
  if (store) stores.push_back(std::make_shared<Served>(store));
}

}  // namespace

ServedStores served_stores(const ImageParts& parts) {
  ServedStores stores;
  add<ImagesToServe>(stores, parts.train);
  add<ImagesToServe>(stores, parts.test);
  return stores;
}

ServedStores served_stores(const TextParts& parts) {
  ServedStores stores = {std::make_shared<TextToServe>(*parts.train)};
  if (parts.test) stores.push_back(std::make_shared<TextToServe>(*parts.test));
  return stores;
}

}  // namespace starling
