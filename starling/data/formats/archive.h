// Archive gives access to the files inside a .tar, .tar.gz, .tar.xz or .tar.zst (libarchive). It indexes the
// archive once. Members that the archive stores uncompressed are read in place through a mapping of the file,
// which the ranks of a host share. Compressed members are unpacked once into memory; the images themselves
// stay JPEG or PNG. Torch-free.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

struct archive;  // libarchive's

namespace starling {

class TarSource;  // of archive.cc

// Returns the most bytes of unpacked images that a rank keeps by default: half of the machine's memory.
uint64_t memory_for_images();

// Returns how many bytes of memory the machine must have available for everything else while a rank unpacks
// images: 1 GiB at most. All ranks of a machine unpack at the same time, and each looks at what is left.
uint64_t memory_to_leave();

// An opened archive. Thread-safe after construction: it does not change.
class Archive {
 public:
  // One file inside the archive.
  struct Member {
    std::string path;                // as in the archive, without a leading "./"
    uint64_t offset = 0;             // of the member's header in the unpacked archive; messages name it
    std::span<const uint8_t> bytes;  // valid as long as the Archive
  };

  // Reads all members whose name `wanted` accepts. If the archive is compressed and a member is neither JPEG
  // nor PNG, only its first 16 bytes are kept, which ImageDecoder refuses. `memory` is the most bytes of
  // names and of compressed members that are kept. Errors: DataError that names the archive and the offset if
  // the archive is missing, damaged, cut or not a tar. An archive without its end mark is cut, and bytes
  // other than zeros after the end mark are damage. DataError also if the archive needs more than `memory`,
  // or if the machine has less than `leave` bytes of memory available while the archive is unpacked.
  Archive(const std::string& path, bool (*wanted)(const std::string& name),
          uint64_t memory = memory_for_images(), uint64_t leave = memory_to_leave());
  ~Archive();
  Archive(const Archive&) = delete;
  Archive& operator=(const Archive&) = delete;

  // The archive's path.
  const std::string& path() const { return path_; }
  // The members that `wanted` accepted.
  const std::vector<Member>& members() const { return members_; }
  // The folders that the archive names.
  const std::vector<std::string>& folders() const { return folders_; }  // without a trailing '/'

 private:
  void map_file();
  void index(bool (*wanted)(const std::string& name));
  // Returns the content of the member at which `reader` stands. `source` gives `reader` its bytes.
  std::span<const uint8_t> content(::archive* reader, TarSource& source, const Member& member);
  // Counts `bytes` of memory that `member` needs, and looks at what the machine has left.
  void take_memory(uint64_t bytes, const Member& member);

  std::string path_;
  uint64_t memory_ = 0, leave_ = 0;
  uint64_t taken_ = 0, looked_ = 0;  // looked_: taken_ at the last look
  std::span<const uint8_t> map_;
  std::deque<std::vector<uint8_t>> unpacked_;
  std::vector<Member> members_;
  std::vector<std::string> folders_;
};

}  // namespace starling
