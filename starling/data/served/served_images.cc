#include "starling/data/served/served_images.h"

#include <utility>

namespace starling {
namespace {

class ServedImages final : public ImageStore {
 public:
  ServedImages(std::shared_ptr<const ServedClient> client, uint32_t part)
      : client_(std::move(client)),
        part_(part),
        described_(client_->description().parts.at(part)),
        labels_(client_->labels(part)) {}

  ImageShape shape() const override { return described_.shape; }
  int64_t size() const override { return described_.size; }
  int64_t classes() const override { return described_.classes; }
  std::vector<std::string> class_names() const override { return described_.class_names; }
  int64_t label(int64_t index) const override { return labels_[static_cast<size_t>(index)]; }
  void decode(std::span<const int64_t> indices, uint8_t* out) const override {
    client_->read(part_, indices, out);
  }

 private:
  std::shared_ptr<const ServedClient> client_;
  uint32_t part_;
  ServedPart described_;
  std::vector<uint32_t> labels_;
};

}  // namespace

ImageParts open_served(std::shared_ptr<const ServedClient> client) {
  ImageParts parts;
  parts.train = std::make_shared<ServedImages>(client, 0);
  if (client->description().parts.size() > 1) parts.test = std::make_shared<ServedImages>(client, 1);
  return parts;
}

}  // namespace starling
