// file_verdicts reads files from its standard input and says what our parsers make of each.
//
//   input     per file: 'f' (safetensors), 'p' (.pt) or 'i' (index), the length (8 bytes, little-endian)
//             and the bytes
//   output    per file: a line "accept CONTENT" or "refuse REASON"
//
// CONTENT of a safetensors file is JSON that maps each tensor to its dtype, shape and number of bytes.
// CONTENT of an index is JSON that maps each file to its tensors. CONTENT of a .pt file is NAME|SHAPE|BYTES;
// for each tensor, with the bytes in hexadecimal digits.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <nlohmann/json.hpp>
#include <string>

#include "starling/base/error.h"
#include "starling/nn/safetensors/safetensors_index.h"
#include "starling/weights/weights_file.h"

namespace starling {
namespace {

using nlohmann::json;

weights::File open(const std::string& bytes, weights::Format format) {
  weights::File file("file", bytes.size(), [&bytes](uint64_t offset, void* out, size_t size) {
    std::memcpy(out, bytes.data() + offset, size);
  });
  if (file.format() != format) throw DataError("another format");
  return file;
}

std::string file_content(const std::string& bytes) {
  const weights::File file = open(bytes, weights::Format::kSafetensors);
  json content = json::object();
  for (const weights::Tensor& tensor : file.tensors())
    content[tensor.name] = {weights::row_of(tensor.dtype).name, tensor.shape, tensor.bytes()};
  return content.dump();
}

std::string pt_content(const std::string& bytes) {
  weights::File file = open(bytes, weights::Format::kPt);
  std::string content;
  for (const weights::Tensor& tensor : file.tensors()) {
    content += fmt::format("{}|{}|", tensor.name, fmt::join(tensor.shape, ","));
    for (const std::byte byte : file.read(tensor)) content += fmt::format("{:02x}", static_cast<int>(byte));
    content += ";";
  }
  return content;
}

std::string index_content(const std::string& bytes) {
  return json(parse_safetensors_index("index", bytes).shards).dump();
}

std::string on_one_line(std::string text) {
  for (char& c : text) {
    if (c == '\n' || c == '\r') c = ' ';
  }
  return text;
}

std::string verdict(char kind, const std::string& bytes) {
  try {
    return "accept " + on_one_line(kind == 'f'   ? file_content(bytes)
                                   : kind == 'p' ? pt_content(bytes)
                                                 : index_content(bytes));
  } catch (const DataError& error) {
    return "refuse " + on_one_line(error.what());
  } catch (const weights::FileError& error) {
    return "refuse " + on_one_line(error.what());
  }
}

int run() {
  for (int kind = std::getchar(); kind != EOF; kind = std::getchar()) {
    uint64_t length = 0;
    if (std::fread(&length, 1, sizeof(length), stdin) != sizeof(length) || length > uint64_t{1} << 30)
      return 2;
    std::string bytes(length, '\0');
    if (std::fread(bytes.data(), 1, bytes.size(), stdin) != bytes.size()) return 2;
    const std::string line = verdict(static_cast<char>(kind), bytes) + "\n";
    std::fwrite(line.data(), 1, line.size(), stdout);
  }
  return 0;
}

}  // namespace
}  // namespace starling

int main() {
  try {
    return starling::run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "file_verdicts: %s\n", error.what());
    return 1;
  }
}
