#include "starling/run/folder/tuning_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <system_error>

#include "starling/base/error.h"
#include "starling/base/read_file.h"

namespace starling {

std::filesystem::path tuning_file() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  if (cache != nullptr && *cache == '/') return std::filesystem::path(cache) / "starling" / "tuning";
  if (home != nullptr && *home == '/') return std::filesystem::path(home) / ".cache" / "starling" / "tuning";
  return {};
}

Tuning read_tuning(const std::filesystem::path& file) {
  return Tuning::parse(read_file(file.string()).text, file.string());
}

std::string tuning_for(int rank, const std::filesystem::path& file) {
  try {
    return read_tuning(file).text();
  } catch (const ConfigError&) {
    if (rank == 0) throw;
    return "";
  }
}

void write_tuning(const std::filesystem::path& file, const Tuning& tuning) {
  std::error_code error;
  std::filesystem::create_directories(file.parent_path(), error);
  const std::filesystem::path fresh = fmt::format("{}.{}", file.string(), ::getpid());
  std::ofstream out(fresh);
  out << tuning.text();
  out.close();
  const bool whole = out.good();
  if (whole) std::filesystem::rename(fresh, file, error);
  if (whole && !error) return;
  const std::string cause = whole ? error.message() : std::strerror(errno);
  std::filesystem::remove(fresh, error);  // the file stays as it was
  throw Error(ErrorCode::kInternal,
              fmt::format("{} cannot be written: {}; set XDG_CACHE_HOME to a folder that you may write",
                          file.string(), cause));
}

}  // namespace starling
