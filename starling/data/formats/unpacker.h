// Unpacker reads a mapped file from front to back and unpacks gzip, xz or zstd. Torch-free.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace starling {

// The unpacked content of one file. Not thread-safe. The mapping must outlive the Unpacker.
class Unpacker {
 public:
  virtual ~Unpacker() = default;

  // Returns the next bytes of the content, or an empty span at its end. The span is valid until the next
  // call. Its size is a multiple of 512 unless the content ends. A file that is not packed is returned in one
  // piece, in place. The end is only returned if the checksums and the lengths that the file states are right
  // and nothing but zeros follows. Errors: DataError that names the file and an offset in it if the file is
  // damaged or cut.
  virtual std::span<const uint8_t> next() = 0;
};

// Returns an Unpacker for the format that the first bytes of `file` state. Any other file is not packed.
// Messages begin with `path`.
std::unique_ptr<Unpacker> make_unpacker(const std::string& path, std::span<const uint8_t> file);

// Throws the DataError "PATH: offset N: text; fetch the file again".
[[noreturn]] void refuse_packed(const std::string& path, uint64_t offset, std::string_view text);

}  // namespace starling
