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

// An opened archive. Thread-safe after construction: it does not change.
class Archive {
 public:
  // One file inside the archive.
  struct Member {
    std::string path;                // as in the archive, without a leading "./"
    uint64_t offset = 0;             // of the member's header in the unpacked archive; messages name it
    std::span<const uint8_t> bytes;  // valid as long as the Archive
  };

  // Reads all members whose name `wanted` accepts. Errors: DataError that names the archive and the offset if
  // the archive is missing, damaged, cut or not a tar.
  Archive(const std::string& path, bool (*wanted)(const std::string& name));
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
  // Returns the content of the member at which `reader` stands.
  std::span<const uint8_t> content(::archive* reader, const Member& member);

  std::string path_;
  std::span<const uint8_t> map_;
  std::deque<std::vector<uint8_t>> unpacked_;
  std::vector<Member> members_;
  std::vector<std::string> folders_;
};

}  // namespace starling
