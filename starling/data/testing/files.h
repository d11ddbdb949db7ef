// Small files that the tests of this folder write and read: a temporary folder, JPEG, PNG and tar. Only tests
// include this header.
#pragma once

#include <archive.h>
#include <archive_entry.h>
#include <gtest/gtest.h>
#include <spng.h>
#include <turbojpeg.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "starling/base/error.h"
#include "starling/data/formats/image_store.h"

namespace starling::testing_files {

// A new temporary folder. The destructor removes it.
class Scratch {
 public:
  Scratch() {
    std::string pattern = (std::filesystem::temp_directory_path() / "starling-data-XXXXXX").string();
    EXPECT_NE(mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
  }
  ~Scratch() {
    std::error_code none;
    std::filesystem::remove_all(dir_, none);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  std::string path(const std::string& name = "") const {
    return name.empty() ? dir_.string() : (dir_ / name).string();
  }
  // Writes a file and the folders above it. Returns its path.
  std::string write(const std::string& name, const std::string& bytes) const {
    std::filesystem::create_directories((dir_ / name).parent_path());
    std::ofstream(dir_ / name, std::ios::binary) << bytes;
    return path(name);
  }
  std::string read(const std::string& name) const {
    std::ifstream in(dir_ / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  // Cuts a file to `bytes` bytes. If `bytes` is negative, cuts -bytes bytes from its end.
  void cut(const std::string& name, std::ptrdiff_t bytes) const {
    const auto size = static_cast<std::ptrdiff_t>(std::filesystem::file_size(dir_ / name));
    std::filesystem::resize_file(dir_ / name, static_cast<size_t>(bytes < 0 ? size + bytes : bytes));
  }

 private:
  std::filesystem::path dir_;
};

// Returns an interleaved RGB image with slow color gradients that depend on `tone`.
inline std::vector<uint8_t> gradient(int height, int width, int tone) {
  std::vector<uint8_t> rgb;
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      rgb.push_back(static_cast<uint8_t>(255 * x / width));
      rgb.push_back(static_cast<uint8_t>(255 * y / height));
      rgb.push_back(static_cast<uint8_t>(tone));
    }
  }
  return rgb;
}

// Returns the gradient image as JPEG.
inline std::string jpeg(int height, int width, int tone) {
  const std::vector<uint8_t> rgb = gradient(height, width, tone);
  tjhandle handle = tjInitCompress();
  unsigned char* out = nullptr;
  unsigned long size = 0;
  EXPECT_EQ(tjCompress2(handle, rgb.data(), width, 0, height, TJPF_RGB, &out, &size, TJSAMP_444, 95, 0), 0);
  std::string bytes(reinterpret_cast<char*>(out), size);
  tjFree(out);
  tjDestroy(handle);
  return bytes;
}

// Returns a PNG of interleaved `pixels` with 1 or 3 channels.
inline std::string png(int height, int width, const std::vector<uint8_t>& pixels) {
  spng_ctx* png = spng_ctx_new(SPNG_CTX_ENCODER);
  spng_set_option(png, SPNG_ENCODE_TO_BUFFER, 1);
  spng_ihdr header{};
  header.width = static_cast<uint32_t>(width);
  header.height = static_cast<uint32_t>(height);
  header.bit_depth = 8;
  const bool grey = pixels.size() == static_cast<size_t>(height) * static_cast<size_t>(width);
  header.color_type = grey ? SPNG_COLOR_TYPE_GRAYSCALE : SPNG_COLOR_TYPE_TRUECOLOR;
  spng_set_ihdr(png, &header);
  EXPECT_EQ(spng_encode_image(png, pixels.data(), pixels.size(), SPNG_FMT_PNG, SPNG_ENCODE_FINALIZE), 0);
  size_t size = 0;
  int error = 0;
  void* out = spng_get_png_buffer(png, &size, &error);
  std::string bytes(static_cast<char*>(out), size);
  std::free(out);
  spng_ctx_free(png);
  return bytes;
}

// Writes a tar (gzip if the name ends in "gz") of files and folders. A name that ends in '/' is a folder.
inline void write_tar(const std::string& path,
                      const std::vector<std::pair<std::string, std::string>>& files) {
  struct archive* out = archive_write_new();
  if (path.ends_with("gz")) archive_write_add_filter_gzip(out);
  archive_write_set_format_pax_restricted(out);
  ASSERT_EQ(archive_write_open_filename(out, path.c_str()), ARCHIVE_OK);
  for (const auto& [name, bytes] : files) {
    archive_entry* entry = archive_entry_new();
    archive_entry_set_pathname(entry, name.c_str());
    const bool folder = name.ends_with("/");
    archive_entry_set_filetype(entry, folder ? AE_IFDIR : AE_IFREG);
    archive_entry_set_perm(entry, folder ? 0755 : 0644);
    archive_entry_set_size(entry, static_cast<la_int64_t>(bytes.size()));
    ASSERT_EQ(archive_write_header(out, entry), ARCHIVE_OK);
    if (!bytes.empty()) {
      ASSERT_EQ(archive_write_data(out, bytes.data(), bytes.size()), static_cast<la_ssize_t>(bytes.size()));
    }
    archive_entry_free(entry);
  }
  archive_write_free(out);
}

// Returns the message of the exception of type E that `call` throws, or "" if it throws none.
template <class E = DataError, class Call>
std::string message_of(Call call) {
  try {
    call();
  } catch (const E& error) {
    return error.what();
  }
  return "";
}

// Returns the pixels of image `index`.
inline std::vector<uint8_t> decode_one(const ImageStore& store, int64_t index) {
  std::vector<uint8_t> pixels(store.shape().bytes());
  store.decode({&index, 1}, pixels.data());
  return pixels;
}

}  // namespace starling::testing_files
