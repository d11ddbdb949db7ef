#include "starling/nn/safetensors/safetensors.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "starling/base/atomic_file.h"
#include "starling/base/error.h"
#include "starling/compress/compressed_file.h"
#include "starling/nn/safetensors/safetensors_index.h"
#include "starling/weights/weights_file.h"

namespace starling {
namespace {

// A private mapping of a whole file. Writes to it do not reach the file.
class Mapping {
 public:
  explicit Mapping(const std::string& path) {
    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    struct stat info;
    if (!fd.valid() || ::fstat(fd.get(), &info) != 0) {
      throw DataError(fmt::format("{}: cannot open: {}", path, std::strerror(errno)));
    }
    if (!S_ISREG(info.st_mode)) throw DataError(fmt::format("{}: is not a regular file", path));
    size_ = static_cast<uint64_t>(info.st_size);
    if (size_ == 0) throw DataError(fmt::format("{}: truncated: 0 bytes", path));
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

// The types of torch in the order of weights::Dtype.
constexpr std::array<c10::ScalarType, weights::kDtypes.size()> kTypes = {
    c10::ScalarType::Double, c10::ScalarType::Float, c10::ScalarType::Half,  c10::ScalarType::BFloat16,
    c10::ScalarType::Long,   c10::ScalarType::Int,   c10::ScalarType::Short, c10::ScalarType::Char,
    c10::ScalarType::Byte,   c10::ScalarType::Bool};

constexpr size_t kShardBytes = 5'000'000'000;

// Returns a view of the mapping. Returns a copy if the file does not align the elements, or if they do not
// lie there in row-major order.
at::Tensor tensor_of(const std::shared_ptr<Mapping>& mapping, weights::File& file,
                     const weights::Tensor& entry) {
  const c10::ScalarType type = kTypes[static_cast<size_t>(entry.dtype)];
  const auto options = at::TensorOptions().dtype(type);
  if (entry.elements == 0) return at::empty(entry.shape, options);
  char* at = mapping->bytes() + entry.offset;
  if (entry.contiguous() && reinterpret_cast<uintptr_t>(at) % c10::elementSize(type) == 0) {
    file.verify(entry);
    return at::from_blob(at, entry.shape, [mapping](void*) {}, options);
  }
  at::Tensor copy = at::empty(entry.shape, options);
  file.read(entry, 0, entry.elements, copy.data_ptr());
  return copy;
}

TensorFile read_one(const std::string& path, bool safetensors_only) {
  const auto mapping = std::make_shared<Mapping>(path);
  const std::span bytes(reinterpret_cast<const std::byte*>(mapping->bytes()), mapping->size());
  if (is_compressed(bytes)) {
    if (!safetensors_only) return read_compressed(path, bytes);
    throw DataError(fmt::format("{}: holds compressed weights; a safetensors file is expected here", path));
  }
  TensorFile content;
  try {
    weights::File file(path, mapping->size(), [mapping](uint64_t offset, void* out, size_t size) {
      std::memcpy(out, mapping->bytes() + offset, size);
    });
    if (safetensors_only && file.format() != weights::Format::kSafetensors)
      throw DataError(fmt::format("{}: is a .pt file; a safetensors file is expected here", path));
    for (const weights::Tensor& entry : file.tensors())
      content.tensors.emplace(entry.name, tensor_of(mapping, file, entry));
    content.metadata = file.metadata();
  } catch (const weights::FileError& error) {
    throw DataError(error.what());
  }
  return content;
}

// Calls `write` with the tensors as sources and with a sink that is the new content of `path`.
template <typename Write>
void write_sources(const std::string& path, const TensorMap& tensors, const Write& write) {
  std::vector<weights::Source> sources;
  sources.reserve(tensors.size());
  at::Tensor current;  // the elements of the tensor that is being written
  for (const auto& [name, tensor] : tensors) {
    const auto type = std::find(kTypes.begin(), kTypes.end(), tensor.scalar_type());
    if (type == kTypes.end()) {
      throw Error(ErrorCode::kCheckpoint,
                  fmt::format("{}: tensor \"{}\" of dtype {} cannot be stored; convert it to another dtype",
                              path, name, c10::toString(tensor.scalar_type())));
    }
    const auto bytes = [&current, &from = tensor] {
      current = from.detach().cpu().contiguous();
      return current.const_data_ptr();
    };
    sources.push_back(
        {name, static_cast<weights::Dtype>(type - kTypes.begin()), tensor.sizes().vec(), bytes});
  }
  AtomicFile file(path);
  try {
    write([&](const void* bytes, size_t size) { file.write(bytes, size); }, sources);
  } catch (const weights::FileError& error) {
    throw Error(ErrorCode::kCheckpoint, fmt::format("{}: {}", path, error.what()));
  }
  file.commit();
}

}  // namespace

TensorFile read_safetensors(const std::string& path) {
  if (!is_safetensors_index(path)) return read_one(path, true);
  TensorFile whole;
  const SafetensorsIndex index = read_safetensors_index(path);
  whole.metadata = index.metadata;
  for (const auto& [shard, names] : index.shards) {
    const TensorFile file = read_one(shard, true);
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
  write_sources(path, tensors, [&](const weights::Sink& sink, std::vector<weights::Source>& sources) {
    weights::write_safetensors(sink, std::move(sources), metadata);
  });
}

TensorFile read_compressed(const std::string& path, std::span<const std::byte> bytes) {
  TensorFile content;
  for (const CompressedTensor& entry : parse_compressed(bytes, path)) {
    const auto options = at::TensorOptions().dtype(kTypes[static_cast<size_t>(entry.dtype)]);
    const at::Tensor tensor = at::empty(entry.shape, options);
    const std::vector<std::byte> elements = decoded(entry);
    if (!elements.empty()) std::memcpy(tensor.data_ptr(), elements.data(), elements.size());
    content.tensors.emplace(entry.name, tensor);
  }
  return content;
}

TensorFile read_weights(const std::string& path) {
  return is_safetensors_index(path) ? read_safetensors(path) : read_one(path, false);
}

void write_weights(const std::string& path, const TensorMap& tensors) {
  if (is_safetensors_index(path)) return write_safetensors_sharded(path, tensors, kShardBytes);
  if (!weights::is_pt_name(path)) return write_safetensors(path, tensors, {{"format", "pt"}});
  write_sources(path, tensors, [](const weights::Sink& sink, const std::vector<weights::Source>& sources) {
    weights::write_pt(sink, sources);
  });
}

}  // namespace starling
