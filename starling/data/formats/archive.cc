#include "starling/data/formats/archive.h"

#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>

#include "starling/base/error.h"
#include "starling/base/physical_memory.h"
#include "starling/base/unique_fd.h"
#include "starling/data/formats/image_codec.h"
#include "starling/data/formats/unpacker.h"

namespace starling {

// Gives the unpacked content to libarchive and remembers where the content ends.
class TarSource {
 public:
  TarSource(const std::string& path, std::span<const uint8_t> file) : unpacker_(make_unpacker(path, file)) {}

  // Returns the next bytes. Errors: those of Unpacker.
  std::span<const uint8_t> next() {
    const std::span<const uint8_t> block = unpacker_->next();
    const auto last = std::find_if(block.rbegin(), block.rend(), [](uint8_t byte) { return byte != 0; });
    if (last != block.rend()) zeros_from_ = size_ + static_cast<uint64_t>(block.rend() - last);
    size_ += block.size();
    return block;
  }
  // The callback of libarchive. An exception must not pass through libarchive, so it is kept for rethrow().
  static la_ssize_t read(::archive* reader, void* self, const void** block) {
    auto* const source = static_cast<TarSource*>(self);
    try {
      const std::span<const uint8_t> bytes = source->next();
      *block = bytes.data();
      return static_cast<la_ssize_t>(bytes.size());
    } catch (...) {
      source->error_ = std::current_exception();
      archive_set_error(reader, EIO, "cannot unpack");
      return ARCHIVE_FATAL;
    }
  }
  // Throws the exception that read() kept, if there is one.
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }
  // The bytes that next() has returned.
  uint64_t size() const { return size_; }
  // The offset from which on next() has returned only zeros.
  uint64_t zeros_from() const { return zeros_from_; }

 private:
  std::unique_ptr<Unpacker> unpacker_;
  std::exception_ptr error_;
  uint64_t size_ = 0, zeros_from_ = 0;
};

namespace {

constexpr uint64_t kMaxMember = uint64_t{256} << 20;
constexpr uint64_t kTarBlock = 512;
constexpr uint64_t kLookAfter = uint64_t{16} << 20;  // unpacked bytes between two looks at the memory left
constexpr size_t kHead = 16;  // the bytes that are kept of a packed member that is no image

struct Free {
  void operator()(::archive* reader) const { archive_read_free(reader); }
};
using ArchiveReader = std::unique_ptr<::archive, Free>;

std::string clean(std::string path) {
  while (path.starts_with("./")) path.erase(0, 2);
  while (!path.empty() && path.back() == '/') path.pop_back();
  return path == "." ? "" : path;
}

// Reports the error of `reader`, which may come from `source`.
[[noreturn]] void fail(const std::string& path, ::archive* reader, const TarSource& source,
                       const std::string& member) {
  source.rethrow();
  const char* said = archive_error_string(reader);
  const std::string text = said != nullptr ? said : "damaged archive";
  const la_int64_t read = archive_filter_bytes(reader, 0);
  const bool ended = text.find("runcated") != std::string::npos;
  refuse_packed(path, ended || read < 0 ? source.size() : static_cast<uint64_t>(read),
                member.empty() ? text : "in " + member + ": " + text);
}

// Returns whether a call of libarchive succeeded. A tar header with a wrong checksum gives ARCHIVE_RETRY,
// with which libarchive offers to look for a later header.
bool succeeded(int code) {
  return code == ARCHIVE_OK || code == ARCHIVE_WARN;
}

// Requires that the archive, whose last member ends at `end`, has its end mark and then only zeros. POSIX
// asks for two blocks of zeros. GNU tar and libarchive accept one. libarchive also accepts none, and it reads
// nothing after a block of zeros.
void require_end(const std::string& path, TarSource& source, uint64_t end) {
  while (!source.next().empty()) continue;
  if (source.zeros_from() > end) {
    throw DataError(
        fmt::format("{}: offset {}: the archive ends here, but other bytes follow; fetch the file "
                    "again, or pack the images into one archive",
                    path, end));
  }
  if (source.size() < end + kTarBlock)
    refuse_packed(path, source.size(), "truncated: the end mark of the tar is missing");
}

}  // namespace

uint64_t memory_for_images() {
  static const uint64_t bytes = physical_memory();
  return bytes / 2;
}

uint64_t memory_to_leave() {
  return std::min(memory_for_images() / 8, uint64_t{1} << 30);
}

Archive::Archive(const std::string& path, bool (*wanted)(const std::string& name), uint64_t memory,
                 uint64_t leave)
    : path_(path), memory_(memory), leave_(leave) {
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
  TarSource source(path_, map_);
  if (archive_read_open(reader.get(), &source, nullptr, TarSource::read, nullptr) != ARCHIVE_OK)
    fail(path_, reader.get(), source, "");
  for (struct archive_entry* entry = nullptr;;) {
    const int code = archive_read_next_header(reader.get(), &entry);
    if (code == ARCHIVE_EOF) break;
    if (!succeeded(code)) fail(path_, reader.get(), source, "");
    const char* name = archive_entry_pathname(entry);
    if (name == nullptr) name = archive_entry_pathname_utf8(entry);
    Member member;
    member.offset = static_cast<uint64_t>(archive_read_header_position(reader.get()));
    if (name == nullptr) {
      throw DataError(fmt::format("{}: offset {}: a member's name cannot be read", path_, member.offset));
    }
    member.path = clean(name);
    take_memory(sizeof(Member) + member.path.size(), member);
    if (archive_entry_filetype(entry) == AE_IFDIR) folders_.push_back(member.path);
    if (archive_entry_filetype(entry) != AE_IFREG || archive_entry_hardlink(entry) != nullptr) continue;
    if (!wanted(member.path)) continue;
    member.bytes = content(reader.get(), source, member);
    members_.push_back(std::move(member));
  }
  require_end(path_, source, static_cast<uint64_t>(archive_read_header_position(reader.get())));
}

void Archive::take_memory(uint64_t bytes, const Member& member) {
  taken_ += bytes;
  if (taken_ > memory_) {
    throw DataError(
        fmt::format("{}: offset {}: the unpacked images need more than the {} bytes of memory that a "
                    "rank may use for them; unpack the archive into a folder and name the folder",
                    path_, member.offset, memory_));
  }
  if (taken_ - looked_ < kLookAfter) return;
  looked_ = taken_;
  const uint64_t available = meminfo("MemAvailable");
  if (available == 0 || available >= leave_) return;  // 0: the kernel does not say
  throw DataError(fmt::format(
      "{}: offset {}: the machine has only {} bytes of memory left after {} bytes of names and images; "
      "unpack the archive into a folder and name the folder, or start fewer ranks on this machine",
      path_, member.offset, available, taken_));
}

std::span<const uint8_t> Archive::content(::archive* reader, TarSource& source, const Member& member) {
  std::span<const uint8_t> bytes;  // the first block, in the mapping, while there is only one block
  std::vector<uint8_t> copy;
  bool kept = true;  // if not, only the head of the content is kept, which the decoder refuses
  int64_t end = 0;
  for (;;) {
    const void* block = nullptr;
    size_t size = 0;
    la_int64_t offset = 0;
    const int code = archive_read_data_block(reader, &block, &size, &offset);
    if (code == ARCHIVE_EOF) break;
    if (!succeeded(code)) fail(path_, reader, source, member.path);
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
    if (bytes.empty() && offset == 0) kept = has_image_magic({data, size});
    const size_t most = kept ? size : std::min(size, kHead - std::min(kHead, copy.size()));
    take_memory(bytes.size() + most, member);
    copy.insert(copy.end(), bytes.begin(), bytes.end());
    bytes = {};
    copy.insert(copy.end(), data, data + most);
  }
  if (copy.empty()) return bytes;
  unpacked_.push_back(std::move(copy));
  unpacked_.back().shrink_to_fit();
  return unpacked_.back();
}

}  // namespace starling
