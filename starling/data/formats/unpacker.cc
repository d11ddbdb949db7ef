#include "starling/data/formats/unpacker.h"

#include <archive.h>
#include <archive_entry.h>
#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "starling/base/error.h"

namespace starling {
namespace {

constexpr size_t kBlock = size_t{128} << 10;    // the bytes that one call returns
constexpr size_t kMostInput = size_t{1} << 30;  // zlib counts its input in 32 bits
constexpr std::string_view kGzip = "\x1f\x8b", kXz = "\xfd\x37zXZ", kZstd = "\x28\xb5\x2f\xfd";

bool begins_with(std::span<const uint8_t> file, std::string_view magic) {
  return file.size() >= magic.size() &&
         std::equal(magic.begin(), magic.end(), file.begin(),
                    [](char m, uint8_t b) { return static_cast<uint8_t>(m) == b; });
}

bool all_zero(std::span<const uint8_t> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](uint8_t b) { return b == 0; });
}

class PlainFile final : public Unpacker {
 public:
  explicit PlainFile(std::span<const uint8_t> file) : rest_(file) {}
  std::span<const uint8_t> next() override { return std::exchange(rest_, {}); }

 private:
  std::span<const uint8_t> rest_;
};

// Reads gzip by zlib, which compares the checksum and the length of each member. libarchive 3.6 skips both.
class GzipFile final : public Unpacker {
 public:
  GzipFile(const std::string& path, std::span<const uint8_t> file)
      : path_(path), file_(file), block_(kBlock) {
    if (inflateInit2(&stream_, MAX_WBITS + 16) != Z_OK)
      throw Error(ErrorCode::kMemory, fmt::format("{}: out of memory for a gzip reader", path));
  }
  ~GzipFile() override { inflateEnd(&stream_); }
  GzipFile(const GzipFile&) = delete;
  GzipFile& operator=(const GzipFile&) = delete;

  std::span<const uint8_t> next() override {
    size_t filled = 0;
    while (filled < block_.size() && !ended_) filled += inflate_some(std::span(block_).subspan(filled));
    return std::span(block_).first(filled);
  }

 private:
  // Returns the bytes that it wrote to `out`. Sets ended_ after the last member.
  size_t inflate_some(std::span<uint8_t> out) {
    const std::span<const uint8_t> in = file_.subspan(read_, std::min(file_.size() - read_, kMostInput));
    stream_.next_in = const_cast<uint8_t*>(in.data());
    stream_.avail_in = static_cast<uInt>(in.size());
    stream_.next_out = out.data();
    stream_.avail_out = static_cast<uInt>(out.size());
    const int code = inflate(&stream_, Z_NO_FLUSH);
    read_ += in.size() - stream_.avail_in;
    if (code == Z_MEM_ERROR)
      throw Error(ErrorCode::kMemory, fmt::format("{}: out of memory for a gzip reader", path_));
    if (code == Z_STREAM_END) {
      ended_ = all_zero(file_.subspan(read_));
      inflateReset(&stream_);
    } else if (code == Z_BUF_ERROR || (code == Z_OK && read_ == file_.size() && stream_.avail_out > 0)) {
      refuse_packed(path_, read_, "the gzip stream is truncated");
    } else if (code != Z_OK) {
      refuse_packed(path_, read_, stream_.msg != nullptr ? stream_.msg : "the gzip stream is damaged");
    }
    return out.size() - stream_.avail_out;
  }

  std::string path_;
  std::span<const uint8_t> file_;
  std::vector<uint8_t> block_;
  z_stream stream_{};
  size_t read_ = 0;  // bytes of file_ that zlib has taken
  bool ended_ = false;
};

// Reads xz and zstd by libarchive's filters.
class FilteredFile final : public Unpacker {
 public:
  FilteredFile(const std::string& path, std::span<const uint8_t> file)
      : path_(path), file_(file), block_(kBlock), reader_(archive_read_new()) {
    if (!reader_) throw Error(ErrorCode::kMemory, fmt::format("{}: out of memory for a reader", path));
    archive_read_support_format_raw(reader_.get());
    archive_read_support_filter_xz(reader_.get());
    archive_read_support_filter_zstd(reader_.get());
    struct archive_entry* entry = nullptr;
    if (archive_read_open_memory(reader_.get(), file.data(), file.size()) != ARCHIVE_OK ||
        archive_read_next_header(reader_.get(), &entry) != ARCHIVE_OK) {
      fail_here();
    }
  }

  std::span<const uint8_t> next() override {
    if (ended_) return {};
    const la_ssize_t read = archive_read_data(reader_.get(), block_.data(), block_.size());
    if (read < 0) fail_here();
    const auto filled = static_cast<size_t>(read);
    ended_ = filled < block_.size();
    if (ended_) require_end();
    return std::span(block_).first(filled);
  }

 private:
  struct Free {
    void operator()(::archive* reader) const { archive_read_free(reader); }
  };

  [[noreturn]] void fail_here() const {
    const char* text = archive_error_string(reader_.get());
    const la_int64_t read = std::max<la_int64_t>(archive_filter_bytes(reader_.get(), -1), 0);
    refuse_packed(path_, static_cast<size_t>(read),
                  text != nullptr ? text : "the compressed stream is damaged");
  }
  void require_end() const {
    const la_int64_t read = std::max<la_int64_t>(archive_filter_bytes(reader_.get(), -1), 0);
    const size_t end = std::min(static_cast<size_t>(read), file_.size());
    if (!all_zero(file_.subspan(end))) refuse_packed(path_, end, "other bytes follow the compressed stream");
  }

  std::string path_;
  std::span<const uint8_t> file_;
  std::vector<uint8_t> block_;
  std::unique_ptr<::archive, Free> reader_;
  bool ended_ = false;
};

}  // namespace

void refuse_packed(const std::string& path, uint64_t offset, std::string_view text) {
  throw DataError(fmt::format("{}: offset {}: {}; fetch the file again", path, offset, text));
}

std::unique_ptr<Unpacker> make_unpacker(const std::string& path, std::span<const uint8_t> file) {
  if (begins_with(file, kGzip)) return std::make_unique<GzipFile>(path, file);
  if (begins_with(file, kXz) || begins_with(file, kZstd)) return std::make_unique<FilteredFile>(path, file);
  return std::make_unique<PlainFile>(file);
}

}  // namespace starling
