// The header of a safetensors file as a value, checked against the file's size before anything is mapped or
// allocated.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace starling {

constexpr uint64_t kMaxSafetensorsHeader = 100'000'000;  // bytes, as the format's own library

struct TensorEntry {
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;  // offsets into the bytes after the header
};

struct SafetensorsHeader {
  std::map<std::string, TensorEntry> tensors;
  std::map<std::string, std::string> metadata;
};

// Parses the JSON text. data_bytes: what follows it in the file. Errors: DataError naming `path`, the tensor
// and the offset for: broken JSON, nesting or values that the format does not know, duplicate names, an
// unknown dtype, a shape whose product overflows or does not match its offsets, tensors that overlap, leave
// gaps or do not end with the file.
SafetensorsHeader parse_safetensors_header(const std::string& path, std::string_view json,
                                           uint64_t data_bytes);

// "F32" …; empty for a dtype that the format (or this library) does not have.
std::string_view safetensors_dtype(c10::ScalarType type);

}  // namespace starling
