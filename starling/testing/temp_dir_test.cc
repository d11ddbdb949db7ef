#include "starling/testing/temp_dir.h"

#include <gtest/gtest.h>

#include "starling/base/error.h"

namespace starling {
namespace {

TEST(TempDir, IsThereThenGoneWithItsContent) {
  std::filesystem::path path;
  {
    TempDir dir;
    path = dir.path();
    std::filesystem::create_directories(path / "a" / "b");
    write_bytes(path / "a" / "b" / "c", "x");
    EXPECT_TRUE(std::filesystem::is_directory(path));
    TempDir other;
    EXPECT_NE(other.path(), path);
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(TempDir, BytesAreKeptExactly) {
  TempDir dir;
  const std::string bytes("a\0\r\n\xff", 5);
  write_bytes(dir.file("f"), bytes);
  EXPECT_EQ(read_bytes(dir.file("f")), bytes);
  write_bytes(dir.file("empty"), "");
  EXPECT_EQ(read_bytes(dir.file("empty")), "");
}

TEST(TempDir, ErrorsNameThePath) {
  TempDir dir;
  EXPECT_THROW(read_bytes(dir.file("absent")), Error);
  EXPECT_THROW(write_bytes(dir.file("no/folder"), "x"), Error);
}

}  // namespace
}  // namespace starling
