// Archive: the image files inside a .tar, .tar.gz, .tar.xz or .tar.zst (libarchive), indexed once. What the
// archive stores plainly is read in place through a mapping of the file, which ranks of a host share; what is
// packed is unpacked once into memory (the images themselves stay JPEG or PNG). Torch-free.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

struct archive;  // libarchive's

namespace starling {

class Archive {
 public:
  struct Member {
    std::string path;                // as in the archive, without a leading "./"
    uint64_t offset = 0;             // of its header in the unpacked archive, for messages
    std::span<const uint8_t> bytes;  // lives as long as the Archive
  };

  // Reads all members whose name `wanted` accepts. Errors: DataError naming the archive and the offset where
  // it is missing, damaged, cut, or no tar.
  Archive(const std::string& path, bool (*wanted)(const std::string& name));
  ~Archive();
  Archive(const Archive&) = delete;
  Archive& operator=(const Archive&) = delete;

  const std::string& path() const { return path_; }
  const std::vector<Member>& members() const { return members_; }
  const std::vector<std::string>& folders() const { return folders_; }  // without trailing '/'

 private:
  void map_file();
  void index(bool (*wanted)(const std::string& name));
  // The content of the member that `reader` stands at.
  std::span<const uint8_t> content(::archive* reader, const Member& member);

  std::string path_;
  std::span<const uint8_t> map_;
  std::deque<std::vector<uint8_t>> unpacked_;
  std::vector<Member> members_;
  std::vector<std::string> folders_;
};

}  // namespace starling
