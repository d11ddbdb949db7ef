#include "starling/launch/rank_log.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "starling/base/error.h"
#include "starling/telemetry/output.h"

namespace starling {

RankLog::RankLog(const std::string& path)
    : fd_(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666)) {
  if (!fd_.valid()) {
    throw ConfigError("run.dir", fmt::format("cannot write {}: {}. Choose another folder with --run-dir",
                                             path, std::strerror(errno)));
  }
}

void RankLog::append(const std::string& line) {
  constexpr size_t kTail = 6;
  tail_.push_back(line);
  if (tail_.size() > kTail) tail_.pop_front();
  if (fd_.valid() && !FdOutput(fd_.get()).write(line + "\n")) fd_.reset();
}

std::string make_log_folder(const std::string& run_dir) {
  const std::string folder = run_dir + "/log";
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    throw ConfigError("run.dir", fmt::format("cannot create {}: {}. Choose another folder with --run-dir",
                                             folder, error.message()));
  }
  return folder;
}

}  // namespace starling
