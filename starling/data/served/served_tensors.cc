#include "starling/data/served/served_tensors.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "starling/base/error.h"

namespace starling {
namespace {

constexpr std::pair<std::string_view, at::ScalarType> kTypes[] = {
    {"F64", at::kDouble}, {"F32", at::kFloat}, {"F16", at::kHalf},  {"BF16", at::kBFloat16},
    {"I64", at::kLong},   {"I32", at::kInt},   {"I16", at::kShort}, {"I8", at::kChar},
    {"U8", at::kByte},    {"BOOL", at::kBool}};

std::string name_of_type(at::ScalarType type) {
  for (const auto& [name, known] : kTypes) {
    if (known == type) return std::string(name);
  }
  throw DataError(
      fmt::format("a data server cannot serve tensors of type {}; convert them", c10::toString(type)));
}

at::ScalarType type_named(const std::string& name) {
  for (const auto& [known, type] : kTypes) {
    if (known == name) return type;
  }
  throw DataError(
      fmt::format("the data server has tensors of type {}, which this version does not know", name));
}

ServedTensor described_as(const at::Tensor& tensor) {
  return {name_of_type(tensor.scalar_type()), tensor.sizes().slice(1).vec()};
}

class TensorsToServe final : public ServedStore {
 public:
  TensorsToServe(at::Tensor input, at::Tensor target)
      : input_(input.detach().contiguous()), target_(target.detach().contiguous()) {
    part_.kind = ServedKind::kTensors;
    part_.size = input_.size(0);
    part_.input = described_as(input_);
    part_.target = described_as(target_);
    part_.classes = target_.scalar_type() == at::kLong && target_.numel() > 0
                        ? std::max<int64_t>(0, target_.max().item<int64_t>() + 1)
                        : 0;
  }

  ServedPart described() const override { return part_; }
  void read(std::span<const int64_t> indices, std::byte* out) const override {
    for (const int64_t i : indices) {
      for (const at::Tensor* tensor : {&input_, &target_}) {
        const size_t bytes = tensor->nbytes() / static_cast<size_t>(part_.size);
        std::memcpy(out,
                    static_cast<const std::byte*>(tensor->const_data_ptr()) + static_cast<size_t>(i) * bytes,
                    bytes);
        out += bytes;
      }
    }
  }

 private:
  at::Tensor input_, target_;
  ServedPart part_;
};

class ServedTensorSource final : public Source {
 public:
  ServedTensorSource(std::shared_ptr<const ServedClient> client, uint32_t part, std::string name)
      : client_(std::move(client)), part_(part), described_(client_->description().parts.at(part)) {
    type_named(described_.input.type);  // throws here, and not in the first step
    type_named(described_.target.type);
    info_.name = std::move(name);
    info_.input_shape = described_.input.shape;
    info_.classes = described_.classes;
  }

  const SourceInfo& info() const override { return info_; }
  int64_t size() const override { return described_.size; }
  Batch read(const std::vector<int64_t>& indices, int64_t /*epoch*/) const override {
    std::vector<uint8_t> bytes(indices.size() * described_.record_bytes());
    client_->read(part_, indices, bytes.data());
    Batch batch;
    size_t offset = 0;
    for (const auto& [tensor, from] :
         {std::pair(&batch.input, &described_.input), {&batch.target, &described_.target}}) {
      std::vector<int64_t> sizes = {static_cast<int64_t>(indices.size())};
      sizes.insert(sizes.end(), from->shape.begin(), from->shape.end());
      *tensor = at::empty(sizes, type_named(from->type));
      const size_t each = from->bytes();
      auto* to = static_cast<uint8_t*>(tensor->data_ptr());
      for (size_t i = 0; i < indices.size(); ++i)
        std::memcpy(to + i * each, bytes.data() + i * described_.record_bytes() + offset, each);
      offset += each;
    }
    return batch;
  }

 private:
  std::shared_ptr<const ServedClient> client_;
  uint32_t part_;
  ServedPart described_;
  SourceInfo info_;
};

}  // namespace

std::shared_ptr<const ServedStore> served_tensors(at::Tensor input, at::Tensor target) {
  if (input.dim() == 0 || target.dim() == 0 || input.size(0) == 0 || input.size(0) != target.size(0))
    throw DataError("a data server needs as many targets as inputs, one in each row, and at least one");
  return std::make_shared<TensorsToServe>(std::move(input), std::move(target));
}

std::shared_ptr<const Source> open_served_tensors(std::shared_ptr<const ServedClient> client, uint32_t part,
                                                  std::string name) {
  return std::make_shared<ServedTensorSource>(std::move(client), part, std::move(name));
}

}  // namespace starling
