#include "starling/data/formats/archive.h"

#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <functional>
#include <memory>

#include "starling/base/error.h"
#include "starling/base/unique_fd.h"

namespace starling {
namespace {

constexpr uint64_t kMaxMember = uint64_t{256} << 20;
constexpr uint64_t kMaxTotal = uint64_t{1} << 40;

struct Free {
  void operator()(::archive* reader) const { archive_read_free(reader); }
};
using ArchiveReader = std::unique_ptr<::archive, Free>;

std::string clean(std::string path) {
  while (path.starts_with("./")) path.erase(0, 2);
  while (!path.empty() && path.back() == '/') path.pop_back();
  return path == "." ? "" : path;
}

// `size` is the size of the file. libarchive reads a small file that ends too early to its end when it opens
// the file, and does not report the error.
[[noreturn]] void fail(const std::string& path, ::archive* reader, size_t size, const std::string& member) {
  const char* said = archive_error_string(reader);
  const std::string text = said != nullptr ? said : "damaged archive";
  const la_int64_t read = archive_filter_bytes(reader, -1);
  const bool ended = text.find("runcated") != std::string::npos;
  const size_t offset = read >= 0 ? static_cast<size_t>(read) : ended ? size : 0;
  throw DataError(fmt::format("{}: offset {}: {}{}; fetch the file again", path, offset,
                              member.empty() ? "" : "in " + member + ": ", text));
}

}  // namespace

Archive::Archive(const std::string& path, bool (*wanted)(const std::string& name)) : path_(path) {
  map_file();
  try {
    index(wanted);
  } catch (...) {
    ::munmap(const_cast<uint8_t*>(map_.data()), map_.size());
    throw;
  }
}

Archive::~Archive() {
  ::munmap(const_cast<uint8_t*>(map_.data()), map_.size());
}

void Archive::map_file() {
  const UniqueFd fd(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status{};
  if (!fd.valid() || ::fstat(fd.get(), &status) != 0) {
    throw DataError(fmt::format("{}: {}; check the path", path_, std::strerror(errno)));
  }
  if (status.st_size == 0) throw DataError(fmt::format("{}: offset 0: the file is empty", path_));
  const size_t bytes = static_cast<size_t>(status.st_size);
  void* base = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (base == MAP_FAILED) throw DataError(fmt::format("{}: cannot map: {}", path_, std::strerror(errno)));
  map_ = {static_cast<const uint8_t*>(base), bytes};
}

void Archive::index(bool (*wanted)(const std::string& name)) {
  const ArchiveReader reader(archive_read_new());
  if (!reader) throw Error(ErrorCode::kMemory, fmt::format("{}: out of memory for an archive reader", path_));
  archive_read_support_format_tar(reader.get());
  archive_read_support_filter_gzip(reader.get());
  archive_read_support_filter_xz(reader.get());
  archive_read_support_filter_zstd(reader.get());
  if (archive_read_open_memory(reader.get(), map_.data(), map_.size()) != ARCHIVE_OK)
    fail(path_, reader.get(), map_.size(), "");
  uint64_t total = 0;
  for (struct archive_entry* entry = nullptr;;) {
    const int code = archive_read_next_header(reader.get(), &entry);
    if (code == ARCHIVE_EOF) break;
    if (code < ARCHIVE_WARN) fail(path_, reader.get(), map_.size(), "");
    const char* name = archive_entry_pathname(entry);
    if (name == nullptr) name = archive_entry_pathname_utf8(entry);
    Member member;
    member.offset = static_cast<uint64_t>(archive_read_header_position(reader.get()));
    if (name == nullptr) {
      throw DataError(fmt::format("{}: offset {}: a member's name cannot be read", path_, member.offset));
    }
    member.path = clean(name);
    if (archive_entry_filetype(entry) == AE_IFDIR) folders_.push_back(member.path);
    if (archive_entry_filetype(entry) != AE_IFREG || archive_entry_hardlink(entry) != nullptr) continue;
    if (!wanted(member.path)) continue;
    member.bytes = content(reader.get(), member);
    total += member.bytes.size();
    if (total > kMaxTotal) {
      throw DataError(
          fmt::format("{}: offset {}: more than {} bytes of images", path_, member.offset, kMaxTotal));
    }
    members_.push_back(std::move(member));
  }
}

std::span<const uint8_t> Archive::content(::archive* reader, const Member& member) {
  std::span<const uint8_t> bytes;  // the first block, in the mapping, while there is only one block
  std::vector<uint8_t> copy;
  int64_t end = 0;
  for (;;) {
    const void* block = nullptr;
    size_t size = 0;
    la_int64_t offset = 0;
    const int code = archive_read_data_block(reader, &block, &size, &offset);
    if (code == ARCHIVE_EOF) break;
    if (code < ARCHIVE_WARN) fail(path_, reader, map_.size(), member.path);
    if (size == 0) continue;
    if (offset != end)
      throw DataError(
          fmt::format("{}: offset {}: {} is stored with holes; pack the archive again "
                      "without --sparse",
                      path_, member.offset, member.path));
    end += static_cast<int64_t>(size);
    if (static_cast<uint64_t>(end) > kMaxMember) {
      throw DataError(fmt::format("{}: offset {}: {} is larger than the {} bytes allowed for an image", path_,
                                  member.offset, member.path, kMaxMember));
    }
    const uint8_t* data = static_cast<const uint8_t*>(block);
    const bool mapped =
        std::less_equal<>{}(map_.data(), data) && std::less<>{}(data, map_.data() + map_.size());
    if (offset == 0 && mapped) {
      bytes = {data, size};
      continue;
    }
    copy.insert(copy.end(), bytes.begin(), bytes.end());
    bytes = {};
    copy.insert(copy.end(), data, data + size);
  }
  if (copy.empty()) return bytes;
  unpacked_.push_back(std::move(copy));
  unpacked_.back().shrink_to_fit();
  return unpacked_.back();
}

}  // namespace starling
