// ByteFile reads a file from front to back, and unpacks it if it is gzip. All error messages name the file
// and the offset in the unpacked bytes.
#pragma once

#include <zlib.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace starling {

// Errors: DataError if `folder` does not exist or is not a folder.
void require_folder(const std::string& folder);

// A file opened for sequential reading. Not thread-safe.
class ByteFile {
 public:
  // Opens the file. Errors: DataError if the file is missing, is not a regular file or cannot be opened.
  explicit ByteFile(const std::string& path);

  // Reads `n` bytes. `what` names them in the message if the file ends earlier. The result grows as bytes
  // arrive, so a false size in a header never costs much more memory than the file has bytes. Errors:
  // DataError if the file ends earlier, or if the gzip stream is damaged.
  std::vector<uint8_t> read(uint64_t n, const std::string& what);
  // Reads all bytes up to the end. Errors: DataError if there are more than `limit`.
  std::vector<uint8_t> read_all(uint64_t limit);
  // Reads a big-endian 32-bit number.
  uint32_t read_u32(const std::string& what);
  // Checks that no bytes follow, and checks the checksum of a gzip file. Errors: DataError.
  void expect_end();

  // The file's path.
  const std::string& path() const { return path_; }
  // The number of unpacked bytes read so far.
  uint64_t offset() const { return offset_; }
  // Throws a DataError with the text "PATH: offset N: message".
  [[noreturn]] void fail(uint64_t offset, const std::string& message) const;

 private:
  struct Close {
    void operator()(gzFile file) const { gzclose(file); }
  };
  // Reads up to `n` bytes; fewer only at the end of the file.
  size_t read_some(uint8_t* out, size_t n);

  std::string path_;
  std::unique_ptr<gzFile_s, Close> file_;
  uint64_t offset_ = 0;
  size_t first_ = 0;  // room for the first bytes of read() and read_all()
};

}  // namespace starling
