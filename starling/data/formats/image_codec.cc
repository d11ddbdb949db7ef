#include "starling/data/formats/image_codec.h"

#include <fmt/format.h>
#include <spng.h>
#include <turbojpeg.h>

#include <string_view>

#include "starling/base/error.h"
#include "starling/data/formats/resize.h"

namespace starling {
namespace {

constexpr int64_t kMaxPixels = int64_t{64} << 20;
constexpr uint32_t kMaxSide = 65'500;

enum class Kind { kJpeg, kPng };

bool is_jpeg(std::span<const uint8_t> file) {
  return file.size() >= 3 && file[0] == 0xFF && file[1] == 0xD8 && file[2] == 0xFF;
}

bool is_png(std::span<const uint8_t> file) {
  constexpr uint8_t kPngMagic[] = {0x89, 'P', 'N', 'G'};
  return file.size() >= 4 && std::equal(kPngMagic, kPngMagic + 4, file.begin());
}

Kind kind_of(std::span<const uint8_t> file, const std::string& name) {
  if (is_jpeg(file)) return Kind::kJpeg;
  if (is_png(file)) return Kind::kPng;
  throw DataError(
      fmt::format("{}: offset 0: {}", name,
                  file.empty() ? "the file is empty" : "neither JPEG nor PNG; remove it or convert it"));
}

[[noreturn]] void fail(const std::string& name, std::span<const uint8_t> file, std::string_view text) {
  throw DataError(
      fmt::format("{}: cannot decode ({} bytes): {}; fetch the file again", name, file.size(), text));
}

void check_size(const std::string& name, int64_t width, int64_t height) {
  if (width >= 1 && height >= 1 && width <= kMaxSide && height <= kMaxSide && width * height <= kMaxPixels)
    return;
  throw DataError(fmt::format("{}: the header announces {} x {} pixels; up to {} pixels are read", name,
                              width, height, kMaxPixels));
}

struct PngFree {
  void operator()(spng_ctx* png) const { spng_ctx_free(png); }
};
using Png = std::unique_ptr<spng_ctx, PngFree>;

Png open_png(std::span<const uint8_t> file, const std::string& name, spng_ihdr& header) {
  Png png(spng_ctx_new(0));
  if (!png) throw Error(ErrorCode::kMemory, fmt::format("{}: out of memory for a PNG decoder", name));
  spng_set_image_limits(png.get(), kMaxSide, kMaxSide);
  spng_set_chunk_limits(png.get(), size_t{64} << 20, size_t{64} << 20);
  int code = spng_set_png_buffer(png.get(), file.data(), file.size());
  if (code == 0) code = spng_get_ihdr(png.get(), &header);
  if (code != 0) fail(name, file, spng_strerror(code));
  check_size(name, header.width, header.height);
  return png;
}

}  // namespace

bool has_image_magic(std::span<const uint8_t> file) {
  return is_jpeg(file) || is_png(file);
}

ImageDecoder::ImageDecoder() : jpeg_(tjInitDecompress()) {
  if (jpeg_ == nullptr) throw Error(ErrorCode::kMemory, "out of memory for a JPEG decoder");
}

ImageDecoder::~ImageDecoder() {
  tjDestroy(jpeg_);
}

ImageShape ImageDecoder::shape(std::span<const uint8_t> file, const std::string& name) {
  if (kind_of(file, name) == Kind::kPng) {
    spng_ihdr header{};
    const Png png = open_png(file, name, header);
    const bool grey = header.color_type == SPNG_COLOR_TYPE_GRAYSCALE ||
                      header.color_type == SPNG_COLOR_TYPE_GRAYSCALE_ALPHA;
    return {grey ? 1 : 3, static_cast<int>(header.height), static_cast<int>(header.width)};
  }
  int width = 0, height = 0, subsampling = 0, color = 0;
  if (tjDecompressHeader3(jpeg_, file.data(), file.size(), &width, &height, &subsampling, &color) != 0) {
    fail(name, file, tjGetErrorStr2(jpeg_));
  }
  if (width == 0 || height == 0) fail(name, file, "it ends before the JPEG frame header");
  check_size(name, width, height);
  return {color == TJCS_GRAY ? 1 : 3, height, width};
}

void ImageDecoder::decode(std::span<const uint8_t> file, const std::string& name, ImageShape wanted,
                          uint8_t* out) {
  if (kind_of(file, name) == Kind::kJpeg) {
    decode_jpeg(file, name, wanted, out);
  } else {
    decode_png(file, name, wanted, out);
  }
}

void ImageDecoder::decode_jpeg(std::span<const uint8_t> file, const std::string& name, ImageShape wanted,
                               uint8_t* out) {
  ImageShape have = shape(file, name);
  have.channels = wanted.channels;
  scratch_.resize(have.bytes());
  const int format = wanted.channels == 1 ? TJPF_GRAY : TJPF_RGB;
  // A progressive image may have any number of scans, and each takes the time of a whole image. The flag
  // limits them to 500.
  if (tjDecompress2(jpeg_, file.data(), file.size(), scratch_.data(), have.width, 0, have.height, format,
                    TJFLAG_LIMITSCANS) != 0) {
    const std::string_view text = tjGetErrorStr2(jpeg_);
    // A warning about bytes between two markers is harmless and common. Every other warning means lost
    // pixels.
    const bool harmless =
        tjGetErrorCode(jpeg_) == TJERR_WARNING && text.find("extraneous bytes") != std::string_view::npos;
    if (!harmless) fail(name, file, text);
  }
  deliver(have, wanted, out);
}

void ImageDecoder::decode_png(std::span<const uint8_t> file, const std::string& name, ImageShape wanted,
                              uint8_t* out) {
  spng_ihdr header{};
  const Png png = open_png(file, name, header);
  ImageShape have{3, static_cast<int>(header.height), static_cast<int>(header.width)};
  scratch_.resize(have.bytes());
  const int code = spng_decode_image(png.get(), scratch_.data(), scratch_.size(), SPNG_FMT_RGB8, 0);
  if (code != 0) fail(name, file, spng_strerror(code));
  if (wanted.channels == 1) {  // ITU-R BT.601 luma, as in JPEG; equal parts stay as they are
    have.channels = 1;
    for (size_t i = 0; i < have.bytes(); ++i) {
      const uint8_t* p = scratch_.data() + 3 * i;
      scratch_[i] = static_cast<uint8_t>((299 * p[0] + 587 * p[1] + 114 * p[2] + 500) / 1000);
    }
  }
  deliver(have, wanted, out);
}

void ImageDecoder::deliver(ImageShape have, ImageShape wanted, uint8_t* out) const {
  if (have != wanted) {
    resize_to_cover(scratch_.data(), have, out, wanted);
    return;
  }
  const size_t plane = static_cast<size_t>(have.height) * static_cast<size_t>(have.width);
  const size_t channels = static_cast<size_t>(have.channels);
  for (size_t c = 0; c < channels; ++c) {
    for (size_t i = 0; i < plane; ++i) out[c * plane + i] = scratch_[i * channels + c];
  }
}

}  // namespace starling
