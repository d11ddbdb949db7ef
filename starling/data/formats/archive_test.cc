// Tests Archive: whole archives of several writers are read, and damaged, cut and hostile archives are
// refused.
#include "starling/data/formats/archive.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <limits>

#include "starling/data/formats/image_codec.h"
#include "starling/data/testing/files.h"

namespace starling {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using testing_files::message_of;
using testing_files::png;
using testing_files::Scratch;

using Files = std::vector<std::pair<std::string, std::string>>;

// A member's size is a multiple of 512, so that the offset of each header is easy to compute.
constexpr size_t kContent = 1024, kMember = 512 + kContent;

bool any(const std::string&) {
  return true;
}

// Returns images of kContent bytes. The last name is too long for the header of a tar.
Files images(bool long_name) {
  Files files;
  for (int i = 0; i < 6; ++i) {
    std::string bytes = png(4, 4, std::vector<uint8_t>(16, static_cast<uint8_t>(i)));
    bytes.resize(kContent, 'x');
    files.emplace_back(fmt::format("cat/{}.png", i), bytes);
  }
  if (long_name) files.back().first = "cat/" + std::string(180, 'n') + ".png";
  return files;
}

// Writes a tar by libarchive, as bsdtar does. `filter` is "", gzip, xz or zstd.
std::string tar_of(const Scratch& dir, const std::string& format, const std::string& filter,
                   const Files& files) {
  const std::string path = dir.path("written.tar");
  struct archive* out = archive_write_new();
  EXPECT_EQ(archive_write_set_format_by_name(out, format.c_str()), ARCHIVE_OK);
  if (!filter.empty()) {
    EXPECT_EQ(archive_write_add_filter_by_name(out, filter.c_str()), ARCHIVE_OK);
  }
  EXPECT_EQ(archive_write_open_filename(out, path.c_str()), ARCHIVE_OK);
  for (const auto& [name, bytes] : files) {
    archive_entry* entry = archive_entry_new();
    archive_entry_set_pathname(entry, name.c_str());
    archive_entry_set_filetype(entry, AE_IFREG);
    archive_entry_set_perm(entry, 0644);
    archive_entry_set_size(entry, static_cast<la_int64_t>(bytes.size()));
    EXPECT_EQ(archive_write_header(out, entry), ARCHIVE_OK);
    EXPECT_EQ(archive_write_data(out, bytes.data(), bytes.size()), static_cast<la_ssize_t>(bytes.size()));
    archive_entry_free(entry);
  }
  archive_write_free(out);
  return dir.read("written.tar");
}

void expect_whole(const std::string& path, Files files) {
  SCOPED_TRACE(path);
  const Archive archive(path, any);
  std::sort(files.begin(), files.end());
  std::vector<Archive::Member> members = archive.members();
  std::sort(members.begin(), members.end(), [](const auto& a, const auto& b) { return a.path < b.path; });
  ASSERT_EQ(members.size(), files.size());
  for (size_t i = 0; i < files.size(); ++i) {
    EXPECT_EQ(members[i].path, files[i].first);
    EXPECT_EQ(std::string(members[i].bytes.begin(), members[i].bytes.end()), files[i].second);
  }
}

std::string error_of(const Scratch& dir, const std::string& bytes, uint64_t memory = memory_for_images(),
                     uint64_t leave = memory_to_leave()) {
  const std::string path = dir.write("tried.tar", bytes);
  return message_of([&] { Archive(path, any, memory, leave); });
}

TEST(Archive, ReadsWholeArchivesOfLibarchive) {
  const Scratch dir;
  for (const std::string format : {"ustar", "gnutar", "pax", "paxr"}) {
    for (const std::string filter : {"", "gzip", "xz", "zstd"}) {
      const Files files = images(format != "ustar");
      const std::string bytes = tar_of(dir, format, filter, files);
      const std::string name = format + filter;
      expect_whole(dir.write(name, bytes), files);
      if (filter == "zstd") continue;  // zstd allows no padding
      expect_whole(dir.write(name + "-padded", bytes + std::string(10240, '\0')), files);
    }
  }
}

TEST(Archive, ReadsWholeArchivesOfGnuTarAndPython) {
  const Scratch dir;
  const Files files = images(true);
  for (const auto& [name, bytes] : files) dir.write("in/" + name, bytes);
  for (const std::string format : {"gnu", "oldgnu", "posix"}) {
    for (const std::string pack : {"", "-z", "-J", "--zstd"}) {
      if (std::system(pack == "-J"       ? "which xz >/dev/null"
                      : pack == "--zstd" ? "which zstd >/dev/null"
                                         : "true"))
        continue;
      const std::string path = dir.path(format + pack);
      ASSERT_EQ(
          std::system(
              fmt::format("tar --format={} {} -C {} -cf {} cat", format, pack, dir.path("in"), path).c_str()),
          0);
      expect_whole(path, files);
    }
  }
  for (const std::string mode : {"w", "w:gz", "w:xz"}) {
    for (const int format : {1, 2}) {  // GNU and pax
      const std::string path = dir.path(fmt::format("python-{}-{}", mode, format));
      const std::string script =
          fmt::format("import tarfile\nwith tarfile.open('{}', '{}', format={}) as tar: tar.add('{}', 'cat')",
                      path, mode, format, dir.path("in/cat"));
      ASSERT_EQ(std::system(fmt::format("python3 -c \"{}\"", script).c_str()), 0);
      expect_whole(path, files);
    }
  }
}

TEST(Archive, OneBlockOfZerosEndsAnArchive) {
  const Scratch dir;
  const Files files = images(false);
  const std::string whole = tar_of(dir, "ustar", "", files);
  expect_whole(dir.write("one", whole.substr(0, 6 * kMember + 512)), files);
  EXPECT_THAT(error_of(dir, whole.substr(0, 6 * kMember + 511)), HasSubstr("tried.tar: offset 9727: "));
}

TEST(Archive, ACutAtTheBoundaryOfAMemberIsFound) {
  const Scratch dir;
  const std::string whole = tar_of(dir, "ustar", "", images(false));
  EXPECT_THAT(error_of(dir, whole.substr(0, 3 * kMember)),
              HasSubstr("tried.tar: offset 4608: truncated: the end mark of the tar is missing"));
  const std::string cut = tar_of(dir, "ustar", "", images(false)).substr(0, 3 * kMember);
  for (const std::string pack : {"gzip", "xz", "zstd"}) {
    dir.write("cut", cut);
    if (std::system(fmt::format("which {} >/dev/null", pack).c_str()) != 0) continue;
    ASSERT_EQ(std::system(fmt::format("{0} -c {1} > {1}.packed", pack, dir.path("cut")).c_str()), 0);
    EXPECT_THAT(error_of(dir, dir.read("cut.packed")), HasSubstr("the end mark of the tar is missing"));
  }
}

TEST(Archive, DamagedHeadersAreFound) {
  const Scratch dir;
  const std::string whole = tar_of(dir, "ustar", "", images(false));
  std::string zeroed = whole;
  std::fill_n(zeroed.begin() + 3 * kMember, 512, '\0');
  EXPECT_THAT(error_of(dir, zeroed),
              HasSubstr("tried.tar: offset 4608: the archive ends here, but other bytes follow"));
  std::string changed = whole;
  changed[3 * kMember] = 'X';
  EXPECT_THAT(error_of(dir, changed), AllOf(HasSubstr("tried.tar: offset"), HasSubstr("Damaged tar")));
  EXPECT_THAT(error_of(dir, whole + whole), HasSubstr("offset 9216: the archive ends here"));
  EXPECT_THAT(error_of(dir, whole + "x"), HasSubstr("offset 9216: the archive ends here"));
}

TEST(Archive, DamagedAndCutStreamsAreFound) {
  const Scratch dir;
  for (const std::string filter : {"gzip", "xz", "zstd"}) {
    SCOPED_TRACE(filter);
    const std::string whole = tar_of(dir, "ustar", filter, images(false));
    for (const size_t cut : {whole.size() / 2, whole.size() - 1}) {
      EXPECT_THAT(error_of(dir, whole.substr(0, cut)), HasSubstr("tried.tar: offset "));
    }
    EXPECT_THAT(error_of(dir, whole + "x"), HasSubstr("tried.tar: offset "));
  }
  const std::string whole = tar_of(dir, "ustar", "gzip", images(false));
  for (const size_t from_end : {8, 4}) {  // the checksum and the length
    std::string changed = whole;
    changed[changed.size() - from_end] ^= 1;
    EXPECT_THAT(error_of(dir, changed),
                AnyOf(HasSubstr("incorrect data check"), HasSubstr("incorrect length")));
  }
  EXPECT_THAT(error_of(dir, whole.substr(0, whole.size() - 3)), HasSubstr("the gzip stream is truncated"));
}

TEST(Archive, ReadsSeveralGzipMembersAsOneArchive) {
  const Scratch dir;
  const Files files = images(false);
  const std::string whole = tar_of(dir, "ustar", "", files);
  dir.write("a", whole.substr(0, 2000));
  dir.write("b", whole.substr(2000));
  ASSERT_EQ(std::system(fmt::format("cd {} && (gzip -c a; gzip -c b) > ab", dir.path()).c_str()), 0);
  expect_whole(dir.path("ab"), files);
}

TEST(Archive, UnpackedImagesMustFitInMemory) {
  const Scratch dir;
  const std::string packed = tar_of(dir, "ustar", "gzip", images(false));
  EXPECT_THAT(error_of(dir, packed, 4 * kContent),
              AllOf(HasSubstr("tried.tar: offset "), HasSubstr("more than the 4096 bytes of memory"),
                    HasSubstr("unpack the archive into a folder")));
  EXPECT_EQ(error_of(dir, packed, 8 * kContent), "");
  // A plain archive is read in place, so only the names take memory.
  EXPECT_EQ(error_of(dir, tar_of(dir, "ustar", "", images(false)), 2 * kContent), "");
  Files names;
  for (int i = 0; i < 40; ++i) names.emplace_back(fmt::format("{}{}", std::string(90, 'n'), i), "");
  EXPECT_THAT(error_of(dir, tar_of(dir, "ustar", "gzip", names), 4096), HasSubstr("of memory"));
}

// Several ranks of a machine unpack at the same time, and none may take what the others need.
TEST(Archive, UnpackingLeavesMemoryForOthers) {
  const Scratch dir;
  const std::string image = images(false)[0].second.substr(0, 16) + std::string(20 << 20, '\0');
  const std::string packed = tar_of(dir, "ustar", "gzip", {{"cat/1.png", image}});
  const uint64_t all = std::numeric_limits<uint64_t>::max();
  EXPECT_THAT(error_of(dir, packed, all, all),
              AllOf(HasSubstr("tried.tar: offset 0: the machine has only "),
                    HasSubstr(" bytes of memory left"), HasSubstr("start fewer ranks on this machine")));
  EXPECT_EQ(error_of(dir, packed, all, 0), "");
  EXPECT_EQ(error_of(dir, tar_of(dir, "ustar", "", {{"cat/1.png", image}}), all, all), "");  // read in place
}

TEST(Archive, OnlyTheHeadOfAPackedMemberThatIsNoImageIsKept) {
  const Scratch dir;
  const Files files = {{"cat/1.png", std::string(3 << 20, '\0')}, {"cat/2.png", images(false)[1].second}};
  for (const std::string filter : {"gzip", "xz", "zstd"}) {
    const std::string path = dir.write("bomb", tar_of(dir, "ustar", filter, files));
    const Archive archive(path, any, 4096);
    ASSERT_EQ(archive.members().size(), 2u);
    EXPECT_EQ(archive.members()[0].bytes.size(), 16u);
    EXPECT_EQ(archive.members()[1].bytes.size(), kContent);
    EXPECT_THAT(message_of([&] { ImageDecoder().shape(archive.members()[0].bytes, "1.png"); }),
                HasSubstr("neither JPEG nor PNG"));
  }
}

}  // namespace
}  // namespace starling
