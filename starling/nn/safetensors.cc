#include "starling/nn/safetensors.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "starling/base/error.h"
#include "starling/nn/atomic_file.h"
#include "starling/nn/safetensors_header.h"
#include "starling/nn/safetensors_index.h"

namespace starling {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

// A whole file in memory, private: writes to it do not reach the file.
class Mapping {
 public:
  explicit Mapping(const std::string& path) {
    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    struct stat info;
    if (!fd.valid() || ::fstat(fd.get(), &info) != 0) {
      throw DataError(fmt::format("{}: cannot open: {}", path, std::strerror(errno)));
    }
    if (!S_ISREG(info.st_mode)) throw DataError(fmt::format("{}: is not a regular file", path));
    size_ = static_cast<uint64_t>(info.st_size);
    if (size_ < 8)
      throw DataError(fmt::format("{}: truncated: {} bytes, a safetensors file has at least 8", path, size_));
    void* at = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd.get(), 0);
    if (at == MAP_FAILED)
      throw DataError(fmt::format("{}: cannot map {} bytes: {}", path, size_, std::strerror(errno)));
    bytes_ = static_cast<char*>(at);
  }
  ~Mapping() {
    if (bytes_) ::munmap(bytes_, size_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  char* bytes() const { return bytes_; }
  uint64_t size() const { return size_; }

 private:
  char* bytes_ = nullptr;
  uint64_t size_ = 0;
};

// A view of the mapping, or a copy where the file does not align the elements.
at::Tensor view_of(const std::shared_ptr<Mapping>& mapping, uint64_t data_begin, const TensorEntry& entry) {
  const auto options = at::TensorOptions().dtype(entry.dtype);
  const uint64_t size = entry.end - entry.begin;
  if (size == 0) return at::empty(entry.shape, options);
  char* at = mapping->bytes() + data_begin + entry.begin;
  if (reinterpret_cast<uintptr_t>(at) % c10::elementSize(entry.dtype) == 0) {
    return at::from_blob(at, entry.shape, [mapping](void*) {}, options);
  }
  at::Tensor copy = at::empty(entry.shape, options);
  std::memcpy(copy.data_ptr(), at, size);
  return copy;
}

TensorFile read_one(const std::string& path) {
  auto mapping = std::make_shared<Mapping>(path);
  uint64_t length = 0;
  std::memcpy(&length, mapping->bytes(), 8);
  if (length > kMaxSafetensorsHeader || length > mapping->size() - 8) {
    throw DataError(fmt::format(
        "{}: not a safetensors file, or truncated: its first 8 bytes announce a header of {} bytes, "
        "{} bytes follow and {} are allowed",
        path, length, mapping->size() - 8, kMaxSafetensorsHeader));
  }
  SafetensorsHeader header = parse_safetensors_header(
      path, {mapping->bytes() + 8, static_cast<size_t>(length)}, mapping->size() - 8 - length);
  TensorFile file;
  file.metadata = std::move(header.metadata);
  for (const auto& [name, entry] : header.tensors)
    file.tensors.emplace(name, view_of(mapping, 8 + length, entry));
  return file;
}

using NamedTensor = std::pair<const std::string, at::Tensor>;

// The largest elements first, so that all are aligned; then by name.
std::vector<const NamedTensor*> in_file_order(const TensorMap& tensors) {
  std::vector<const NamedTensor*> order;
  for (const NamedTensor& item : tensors) order.push_back(&item);
  std::stable_sort(order.begin(), order.end(), [](const NamedTensor* a, const NamedTensor* b) {
    return a->second.element_size() > b->second.element_size();
  });
  return order;
}

std::string header_text(const std::string& path, const std::vector<const NamedTensor*>& order,
                        const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  uint64_t offset = 0;
  for (const NamedTensor* item : order) {
    const auto& [name, tensor] = *item;
    const std::string_view dtype = safetensors_dtype(tensor.scalar_type());
    if (dtype.empty() || name == "__metadata__") {
      throw Error(ErrorCode::kCheckpoint,
                  fmt::format("{}: tensor \"{}\" of dtype {} cannot be stored as safetensors", path, name,
                              c10::toString(tensor.scalar_type())));
    }
    const uint64_t end = offset + static_cast<uint64_t>(tensor.numel()) * tensor.element_size();
    header[name] = {
        {"dtype", std::string(dtype)}, {"shape", tensor.sizes().vec()}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

}  // namespace

TensorFile read_safetensors(const std::string& path) {
  if (!is_safetensors_index(path)) return read_one(path);
  TensorFile whole;
  const SafetensorsIndex index = read_safetensors_index(path);
  whole.metadata = index.metadata;
  for (const auto& [shard, names] : index.shards) {
    const TensorFile file = read_one(shard);
    for (const std::string& name : names) {
      const auto found = file.tensors.find(name);
      if (found == file.tensors.end()) {
        throw DataError(
            fmt::format("{}: tensor \"{}\" should be in {}, which does not have it", path, name, shard));
      }
      whole.tensors.emplace(name, found->second);
    }
  }
  return whole;
}

void write_safetensors(const std::string& path, const TensorMap& tensors,
                       const std::map<std::string, std::string>& metadata) {
  const std::vector<const NamedTensor*> order = in_file_order(tensors);
  const std::string header = header_text(path, order, metadata);
  const uint64_t length = header.size();
  AtomicFile file(path);
  file.write(&length, 8);
  file.write(header.data(), header.size());
  for (const NamedTensor* item : order) {
    const at::Tensor flat = item->second.detach().cpu().contiguous();
    file.write(flat.const_data_ptr(), flat.nbytes());
  }
  file.commit();
}

}  // namespace starling
