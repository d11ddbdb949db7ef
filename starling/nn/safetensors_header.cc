#include "starling/nn/safetensors_header.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "starling/base/error.h"

namespace starling {
namespace {

using c10::ScalarType;

struct DtypeName {
  std::string_view name;
  ScalarType type;
  uint64_t bytes;
};

constexpr std::array<DtypeName, 10> kDtypes = {{{"F64", ScalarType::Double, 8},
                                                {"F32", ScalarType::Float, 4},
                                                {"F16", ScalarType::Half, 2},
                                                {"BF16", ScalarType::BFloat16, 2},
                                                {"I64", ScalarType::Long, 8},
                                                {"I32", ScalarType::Int, 4},
                                                {"I16", ScalarType::Short, 2},
                                                {"I8", ScalarType::Char, 1},
                                                {"U8", ScalarType::Byte, 1},
                                                {"BOOL", ScalarType::Bool, 1}}};
constexpr size_t kMaxDims = 64;

// Reads the one shape that a header may have, {name: {"dtype": string, "shape": [n…], "data_offsets": [n, n]}
// …,
// "__metadata__": {string: string …}}, and throws at the first thing that differs; no tree of values is
// built, so neither depth nor size costs memory.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  HeaderReader(const std::string& path, SafetensorsHeader& header) : path_(path), header_(header) {}

  bool start_object(size_t) override {
    if (level_ == 2 || in_array_) fail("a JSON object where the format has none");
    ++level_;
    return true;
  }
  bool end_object() override {
    --level_;
    if (level_ == 1 && tensor_) {
      if (seen_ != 7) fail("needs dtype, shape and data_offsets");
      tensor_ = nullptr;
    }
    return true;
  }
  bool key(std::string& name) override {
    if (level_ == 1) return top_key(name);
    field_ = name;
    if (!tensor_) {
      if (header_.metadata.count(name)) fail("the key \"{}\" twice", name);
      return true;
    }
    const int bit = name == "dtype" ? 1 : name == "shape" ? 2 : name == "data_offsets" ? 4 : 0;
    if (bit == 0) fail("an unknown field \"{}\"", name);
    if (seen_ & bit) fail("the field \"{}\" twice", name);
    seen_ |= bit;
    return true;
  }
  bool string(std::string& value) override {
    if (level_ == 2 && !tensor_) {
      header_.metadata[field_] = value;
    } else if (level_ == 2 && field_ == "dtype") {
      set_dtype(value);
    } else {
      fail("a string where the format has none");
    }
    return true;
  }
  bool start_array(size_t) override {
    if (in_array_ || !tensor_ || field_ == "dtype") fail("a JSON array where the format has none");
    in_array_ = true;
    numbers_.clear();
    return true;
  }
  bool end_array() override {
    in_array_ = false;
    if (field_ == "data_offsets") {
      if (numbers_.size() != 2) fail("data_offsets has {} numbers, not 2", numbers_.size());
      tensor_->begin = numbers_[0];
      tensor_->end = numbers_[1];
    } else {
      tensor_->shape.assign(numbers_.begin(), numbers_.end());
    }
    return true;
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (!in_array_) fail("a number where the format has none");
    if (value > static_cast<uint64_t>(INT64_MAX)) fail("the number {} is too large", value);
    if (numbers_.size() == kMaxDims) fail("more than {} dimensions", kMaxDims);
    numbers_.push_back(value);
    return true;
  }
  bool number_integer(number_integer_t value) override { fail("the number {} is negative", value); }
  bool number_float(number_float_t, const string_t& text) override {
    fail("the number {} is not an integer", text);
  }
  bool null() override { fail("null where the format has none"); }
  bool boolean(bool) override { fail("a boolean where the format has none"); }
  bool binary(binary_t&) override { fail("binary data where the format has none"); }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    throw DataError(
        fmt::format("{}: the header is not JSON at offset {}: {}", path_, 8 + position, error.what()));
  }

 private:
  bool top_key(const std::string& name) {
    name_ = name;
    field_.clear();
    tensor_ = nullptr;
    if (name == "__metadata__") {
      if (std::exchange(metadata_seen_, true)) fail("stands there twice");
      return true;
    }
    seen_ = 0;
    auto [entry, fresh] = header_.tensors.try_emplace(name);
    if (!fresh) fail("stands there twice");
    tensor_ = &entry->second;
    return true;
  }

  void set_dtype(const std::string& value) {
    for (const DtypeName& d : kDtypes) {
      if (d.name == value) {
        tensor_->dtype = d.type;
        return;
      }
    }
    fail("unknown dtype \"{}\"; known are F64 F32 F16 BF16 I64 I32 I16 I8 U8 BOOL", value);
  }

  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
    throw DataError(fmt::format("{}: header: {}: {}", path_,
                                name_.empty() ? "top level" : fmt::format("\"{}\"", name_),
                                fmt::format(format, std::forward<Args>(args)...)));
  }

  const std::string& path_;
  SafetensorsHeader& header_;
  int level_ = 0;  // objects open
  bool in_array_ = false;
  bool metadata_seen_ = false;
  std::string name_;               // key at level 1
  std::string field_;              // key at level 2
  TensorEntry* tensor_ = nullptr;  // null inside __metadata__
  int seen_ = 0;                   // bits of the fields of tensor_
  std::vector<uint64_t> numbers_;
};

uint64_t element_bytes(ScalarType type) {
  return std::find_if(kDtypes.begin(), kDtypes.end(), [&](const DtypeName& d) { return d.type == type; })
      ->bytes;
}

void check_size(const std::string& path, const std::string& name, const TensorEntry& t) {
  // Every product, and the product of the dimensions without the zero ones, must fit: torch keeps strides
  // too.
  uint64_t elements = 1, strides = 1;
  bool fits = true;
  for (const int64_t n : t.shape) {
    elements *= static_cast<uint64_t>(n);
    fits = fits && !__builtin_mul_overflow(strides, static_cast<uint64_t>(std::max<int64_t>(n, 1)), &strides);
    fits = fits && strides <= static_cast<uint64_t>(INT64_MAX) / 8;
  }
  if (!fits)
    throw DataError(
        fmt::format("{}: header: \"{}\": the shape [{}] overflows", path, name, fmt::join(t.shape, ", ")));
  const uint64_t bytes = elements * element_bytes(t.dtype);
  if (t.end < t.begin || t.end - t.begin != bytes) {
    throw DataError(fmt::format("{}: header: \"{}\": {} [{}] takes {} bytes, but its offsets are {} to {}",
                                path, name, safetensors_dtype(t.dtype), fmt::join(t.shape, ", "), bytes,
                                t.begin, t.end));
  }
}

// The tensors must cover the bytes after the header exactly, one after the other.
void check_layout(const std::string& path, const SafetensorsHeader& header, uint64_t data_bytes) {
  std::vector<std::pair<const std::string*, const TensorEntry*>> order;
  for (const auto& [name, t] : header.tensors) {
    check_size(path, name, t);
    order.emplace_back(&name, &t);
  }
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second->begin, a.second->end) < std::pair(b.second->begin, b.second->end);
  });
  uint64_t next = 0;
  for (const auto& [name, t] : order) {
    if (t->begin != next) {
      throw DataError(
          fmt::format("{}: header: \"{}\" begins at offset {}, but the tensor before it ends at {} ({})",
                      path, *name, t->begin, next, t->begin < next ? "they overlap" : "there is a gap"));
    }
    if (t->end > data_bytes) {
      throw DataError(
          fmt::format("{}: truncated: \"{}\" ends at offset {}, but the file has {} bytes after its header",
                      path, *name, t->end, data_bytes));
    }
    next = t->end;
  }
  if (next != data_bytes) {
    throw DataError(fmt::format("{}: {} bytes follow the last tensor, which ends at offset {}", path,
                                data_bytes - next, next));
  }
}

}  // namespace

SafetensorsHeader parse_safetensors_header(const std::string& path, std::string_view json,
                                           uint64_t data_bytes) {
  if (json.empty() || json.front() != '{')
    throw DataError(fmt::format("{}: not a safetensors file: the header does not begin with {{", path));
  SafetensorsHeader header;
  HeaderReader reader(path, header);
  nlohmann::json::sax_parse(json.begin(), json.end(), &reader);
  check_layout(path, header, data_bytes);
  return header;
}

std::string_view safetensors_dtype(ScalarType type) {
  for (const DtypeName& d : kDtypes) {
    if (d.type == type) return d.name;
  }
  return {};
}

}  // namespace starling
