#include "starling/data/formats/byte_file.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "starling/base/error.h"
#include "starling/data/read_place.h"

namespace starling {
namespace {
constexpr size_t kChunk = size_t{1} << 20;   // the most bytes of one call of zlib
constexpr size_t kFirst = size_t{64} << 10;  // the most room before the first bytes have arrived; it doubles
constexpr uint64_t kLeastRoom = 4096, kMostBuffer = uint64_t{256} << 10;
}  // namespace

void require_folder(const std::string& folder) {
  struct stat status{};
  if (::stat(folder.c_str(), &status) != 0) {
    throw DataError(errno == ENOENT ? fmt::format("{}: the folder does not exist; check the path", folder)
                                    : fmt::format("{}: {}; check the path", folder, std::strerror(errno)));
  }
  if (!S_ISDIR(status.st_mode)) throw DataError(fmt::format("{}: not a folder; check the path", folder));
}

ByteFile::ByteFile(const std::string& path) : path_(path) {
  about_to_read(path, 0);
  struct stat status{};
  if (::stat(path.c_str(), &status) != 0) {
    throw DataError(fmt::format("{}: {}; check the path", path, std::strerror(errno)));
  }
  if (!S_ISREG(status.st_mode)) throw DataError(fmt::format("{}: not a regular file", path));
  file_.reset(gzopen(path.c_str(), "rb"));
  if (!file_) throw DataError(fmt::format("{}: cannot open: {}", path, std::strerror(errno)));
  // A small file gets little memory.
  const auto size = static_cast<uint64_t>(status.st_size);
  first_ = std::clamp<size_t>(size + 1, kLeastRoom, kFirst);
  gzbuffer(file_.get(), static_cast<unsigned>(std::clamp(size, kLeastRoom, kMostBuffer)));
}

void ByteFile::fail(uint64_t offset, const std::string& message) const {
  throw DataError(fmt::format("{}: offset {}: {}", path_, offset, message));
}

size_t ByteFile::read_some(uint8_t* out, size_t n) {
  size_t done = 0;
  while (done < n) {
    about_to_read(path_, offset_);
    const int got = gzread(file_.get(), out + done, static_cast<unsigned>(std::min(n - done, kChunk)));
    int code = Z_OK;
    const char* text = gzerror(file_.get(), &code);
    if (got > 0) {
      done += static_cast<size_t>(got);
      offset_ += static_cast<uint64_t>(got);
    }
    if (code == Z_BUF_ERROR) fail(offset_, "the gzip stream is truncated; fetch the file again");
    if (got < 0) fail(offset_, fmt::format("cannot read: {}; fetch the file again", text));
    if (got == 0) break;
  }
  return done;
}

std::vector<uint8_t> ByteFile::read(uint64_t n, const std::string& what) {
  std::vector<uint8_t> bytes;
  while (bytes.size() < n) {
    const size_t have = bytes.size();
    const size_t want = static_cast<size_t>(std::min<uint64_t>(n - have, std::max(first_, have)));
    bytes.resize(have + want);
    const size_t got = read_some(bytes.data() + have, want);
    if (got < want) {
      fail(offset_, fmt::format("truncated: {} needs {} bytes, {} are there; fetch the file again", what, n,
                                have + got));
    }
  }
  return bytes;
}

std::vector<uint8_t> ByteFile::read_all(uint64_t limit) {
  std::vector<uint8_t> bytes;
  for (;;) {
    const size_t have = bytes.size();
    bytes.resize(have + std::max(first_, have));
    const size_t got = read_some(bytes.data() + have, bytes.size() - have);
    bytes.resize(have + got);
    if (bytes.size() > limit) fail(limit, fmt::format("larger than the {} bytes allowed here", limit));
    if (got == 0) return bytes;
  }
}

uint32_t ByteFile::read_u32(const std::string& what) {
  const std::vector<uint8_t> b = read(4, what);
  return uint32_t{b[0]} << 24 | uint32_t{b[1]} << 16 | uint32_t{b[2]} << 8 | uint32_t{b[3]};
}

void ByteFile::expect_end() {
  uint8_t extra = 0;
  const uint64_t end = offset_;
  if (read_some(&extra, 1) != 0)
    fail(end, "more bytes follow than the header announces; the file is damaged");
}

}  // namespace starling
