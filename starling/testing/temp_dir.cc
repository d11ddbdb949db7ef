#include "starling/testing/temp_dir.h"

#include <fmt/format.h>
#include <stdlib.h>

#include <cstring>
#include <fstream>
#include <sstream>

#include "starling/base/error.h"

namespace starling {

TempDir::TempDir() {
  std::string pattern = (std::filesystem::temp_directory_path() / "starling-XXXXXX").string();
  if (!::mkdtemp(pattern.data()))
    throw Error(ErrorCode::kInternal,
                fmt::format("no temporary folder {}: {}", pattern, std::strerror(errno)));
  path_ = pattern;
}

TempDir::~TempDir() {
  std::error_code ignored;  // what a test leaves open or mounted must not end it
  std::filesystem::remove_all(path_, ignored);
}

std::string read_bytes(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  if (!(out << in.rdbuf()) && in.bad())
    throw Error(ErrorCode::kInternal, fmt::format("{}: cannot be read", path.string()));
  if (!in.is_open()) throw Error(ErrorCode::kInternal, fmt::format("{}: cannot be opened", path.string()));
  return out.str();
}

void write_bytes(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!out.flush()) throw Error(ErrorCode::kInternal, fmt::format("{}: cannot be written", path.string()));
}

}  // namespace starling
