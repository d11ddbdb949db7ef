// ByteFile: a file read from front to back, gunzipped on the way where it is gzip. Everything that it refuses
// names the file and the offset (in the unpacked bytes).
#pragma once

#include <zlib.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace starling {

class ByteFile {
 public:
  // Errors: DataError if it is missing, not a regular file or cannot be opened.
  explicit ByteFile(const std::string& path);

  // Reads `n` bytes; `what` names them in the message of a file that ends before. The result grows as bytes
  // arrive, so that a false size in a header never costs more memory than the file really has.
  std::vector<uint8_t> read(uint64_t n, const std::string& what);
  // Everything up to the end; refuses more than `limit` bytes.
  std::vector<uint8_t> read_all(uint64_t limit);
  // Big-endian.
  uint32_t read_u32(const std::string& what);
  // Refuses bytes that follow; checks the checksum of a gzip file.
  void expect_end();

  const std::string& path() const { return path_; }
  uint64_t offset() const { return offset_; }
  // "PATH: offset N: message"
  [[noreturn]] void fail(uint64_t offset, const std::string& message) const;

 private:
  struct Close {
    void operator()(gzFile file) const { gzclose(file); }
  };
  // Up to `n` bytes, fewer only at the end.
  size_t read_some(uint8_t* out, size_t n);

  std::string path_;
  std::unique_ptr<gzFile_s, Close> file_;
  uint64_t offset_ = 0;
};

}  // namespace starling
