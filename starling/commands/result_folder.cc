#include "starling/commands/result_folder.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "starling/base/atomic_file.h"
#include "starling/base/error.h"
#include "starling/job/job_checkpoint.h"

namespace starling {
namespace {

// Returns the folder around a folder, whose name may end in "/".
std::filesystem::path around(const std::string& folder) {
  std::filesystem::path path(folder);
  if (!path.has_filename()) path = path.parent_path();
  const std::filesystem::path parent = path.parent_path();
  return parent.empty() ? "." : parent;
}

void make_here(const std::string& flag, const std::string& folder, int rank) {
  check_result_folder(flag, folder);
  if (::mkdir(folder.c_str(), 0777) != 0 && errno != EEXIST)
    throw ConfigError(flag, fmt::format("{}: the folder cannot be made: {}; give another folder", folder,
                                        std::generic_category().message(errno)));
  try {
    const AtomicFile probe(fmt::format("{}/probe-{}", folder, rank));  // leaves no trace
  } catch (const Error& error) {
    throw ConfigError(flag, fmt::format("{}; give a folder that takes files", error.what()));
  }
}

// A file that rank 0 writes and all ranks look for. Rank 0 removes it at the end.
class SharedMark {
 public:
  SharedMark(const std::string& folder, bool writes)
      : folder_(folder), path_(folder + "/.seen-by-all-ranks"), writes_(writes) {}
  SharedMark(const SharedMark&) = delete;
  SharedMark& operator=(const SharedMark&) = delete;
  ~SharedMark() {
    std::error_code ignored;
    if (writes_) std::filesystem::remove(path_, ignored);
  }
  void write(const std::string& flag) const {
    if (writes_ && !(std::ofstream(path_) << '\n'))
      throw ConfigError(flag, fmt::format("{} cannot be written; give a folder that takes files", path_));
  }
  void require(const std::string& flag, int rank) const {
    std::error_code error;
    if (std::filesystem::exists(path_, error)) return;
    throw ConfigError(flag, fmt::format("rank {} does not see in {} what rank 0 writes there; give a folder "
                                        "that all hosts share",
                                        rank, folder_));
  }

 private:
  const std::string folder_, path_;
  const bool writes_;
};

}  // namespace

void check_result_folder(const std::string& flag, const std::string& folder) {
  if (folder.empty()) return;
  std::error_code error;
  const std::filesystem::file_status found = std::filesystem::status(folder, error);
  if (std::filesystem::is_directory(found)) return;
  if (std::filesystem::exists(found))
    throw ConfigError(flag, fmt::format("{} is not a folder; give the name of a folder", folder));
  if (found.type() != std::filesystem::file_type::not_found)
    throw ConfigError(flag, fmt::format("{}: {}; give another folder", folder, error.message()));
  const std::filesystem::path parent = around(folder);
  if (!std::filesystem::is_directory(parent, error))
    throw ConfigError(flag, fmt::format("{} cannot be made, because {} is not a folder; make it first, or "
                                        "give another folder",
                                        folder, parent.string()));
}

void make_result_folder(Group& group, const std::string& flag, const std::string& folder) {
  if (folder.empty()) return;
  agree_on_success(group, [&] { make_here(flag, folder, group.rank()); });
  if (group.size() == 1) return;
  const SharedMark mark(folder, group.rank() == 0);
  agree_on_success(group, [&] { mark.write(flag); });
  agree_on_success(group, [&] { mark.require(flag, group.rank()); });
}

}  // namespace starling
