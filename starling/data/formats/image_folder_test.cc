#include "starling/data/formats/image_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "starling/data/formats/image_codec.h"
#include "starling/data/formats/resize.h"
#include "starling/data/testing/files.h"

namespace starling {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing_files::decode_one;
using testing_files::gradient;
using testing_files::jpeg;
using testing_files::message_of;
using testing_files::png;
using testing_files::Scratch;
using testing_files::write_tar;

using Files = std::vector<std::pair<std::string, std::string>>;

std::span<const uint8_t> span_of(const std::string& bytes) {
  return {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()};
}

// Returns the interleaved gradient as planes.
std::vector<uint8_t> planar(const std::vector<uint8_t>& rgb) {
  std::vector<uint8_t> planes(rgb.size());
  for (size_t i = 0; i < rgb.size(); ++i) planes[i % 3 * (rgb.size() / 3) + i / 3] = rgb[i];
  return planes;
}

int largest_difference(const std::vector<uint8_t>& a, const std::vector<uint8_t>& b) {
  int largest = a.size() == b.size() ? 0 : 256;
  for (size_t i = 0; i < a.size() && i < b.size(); ++i)
    largest = std::max(largest, std::abs(int{a[i]} - int{b[i]}));
  return largest;
}

TEST(ImageCodec, PngIsExactAndJpegIsNear) {
  const std::vector<uint8_t> rgb = gradient(20, 30, 90);
  ImageDecoder decoder;
  const ImageShape shape{3, 20, 30};
  std::vector<uint8_t> out(shape.bytes());
  const std::string as_png = png(20, 30, rgb), as_jpeg = jpeg(20, 30, 90);
  EXPECT_EQ(decoder.shape(span_of(as_png), "a"), shape);
  EXPECT_EQ(decoder.shape(span_of(as_jpeg), "a"), shape);
  decoder.decode(span_of(as_png), "a", shape, out.data());
  EXPECT_EQ(out, planar(rgb));
  decoder.decode(span_of(as_jpeg), "a", shape, out.data());
  EXPECT_LE(largest_difference(out, planar(rgb)), 6);
}

TEST(ImageCodec, GreyStaysGreyAndColorBecomesLuma) {
  const std::vector<uint8_t> grey = {0, 50, 100, 150, 200, 250};
  const std::string file = png(2, 3, grey);
  ImageDecoder decoder;
  EXPECT_EQ(decoder.shape(span_of(file), "a"), (ImageShape{1, 2, 3}));
  std::vector<uint8_t> out(6);
  decoder.decode(span_of(file), "a", {1, 2, 3}, out.data());
  EXPECT_EQ(out, grey);
  const std::string color = png(1, 2, {255, 0, 0, 0, 0, 255});
  decoder.decode(span_of(color), "a", {1, 1, 2}, out.data());
  EXPECT_EQ(out[0], 76);
  EXPECT_EQ(out[1], 29);
}

TEST(ImageCodec, RefusesWhatIsCutOrForeign) {
  std::vector<uint8_t> out(3 * 20 * 30);
  for (const std::string& whole : {jpeg(20, 30, 7), png(20, 30, gradient(20, 30, 7))}) {
    for (const size_t keep : {size_t{5}, whole.size() / 2, whole.size() - 20}) {
      ImageDecoder decoder;
      const std::string cut = whole.substr(0, keep);
      EXPECT_THAT(message_of([&] { decoder.decode(span_of(cut), "cats/1.jpg", {3, 20, 30}, out.data()); }),
                  AllOf(HasSubstr("cats/1.jpg"), HasSubstr("cannot decode")))
          << keep << " of " << whole.size();
    }
  }
  ImageDecoder decoder;
  EXPECT_THAT(message_of([&] { decoder.shape(span_of(""), "x"); }), HasSubstr("empty"));
  EXPECT_THAT(message_of([&] { decoder.shape(span_of("GIF89a"), "x"); }), HasSubstr("neither JPEG nor PNG"));
}

TEST(ImageCodec, RefusesAHeaderOfBillionsOfPixels) {
  std::string file = jpeg(8, 8, 0);
  const size_t frame = file.find("\xFF\xC0");
  ASSERT_NE(frame, std::string::npos);
  for (size_t i = 5; i < 9; ++i) file[frame + i] = static_cast<char>(0xF0);  // height, width
  ImageDecoder decoder;
  EXPECT_THAT(message_of([&] { decoder.shape(span_of(file), "x"); }), HasSubstr("pixels are read"));
}

TEST(ImageCodec, RefusesAJpegOfManyScans) {
  const std::vector<uint8_t> rgb = gradient(64, 64, 3);
  tjhandle handle = tjInitCompress();
  unsigned char* out = nullptr;
  unsigned long size = 0;
  ASSERT_EQ(
      tjCompress2(handle, rgb.data(), 64, 0, 64, TJPF_RGB, &out, &size, TJSAMP_444, 95, TJFLAG_PROGRESSIVE),
      0);
  const std::string whole(reinterpret_cast<char*>(out), size);
  tjFree(out);
  tjDestroy(handle);
  const size_t last = whole.rfind("\xff\xda"), end = whole.size() - 2;  // the last scan, and the end marker
  std::string many = whole.substr(0, end);
  for (int i = 0; i < 600; ++i) many += whole.substr(last, end - last);
  many += whole.substr(end);
  const ImageShape shape{3, 64, 64};
  std::vector<uint8_t> pixels(shape.bytes());
  ImageDecoder().decode(span_of(whole), "whole", shape, pixels.data());
  EXPECT_THAT(message_of([&] { ImageDecoder().decode(span_of(many), "many", shape, pixels.data()); }),
              AllOf(HasSubstr("many: "), HasSubstr("500 scans")));
}

TEST(Resize, KeepsConstantsAndAveragesHalves) {
  std::vector<uint8_t> out(3 * 7 * 5);
  resize_to_cover(std::vector<uint8_t>(3 * 20 * 9, 77).data(), {3, 20, 9}, out.data(), {3, 7, 5});
  EXPECT_EQ(out, std::vector<uint8_t>(3 * 7 * 5, 77));
  std::vector<uint8_t> ramp(16 * 16), half(8 * 8);
  for (size_t i = 0; i < ramp.size(); ++i) ramp[i] = static_cast<uint8_t>(8 * (i % 16) + 4);
  resize_to_cover(ramp.data(), {1, 16, 16}, half.data(), {1, 8, 8});
  for (size_t x = 1; x < 7; ++x) EXPECT_NEAR(half[x], 16 * static_cast<int>(x) + 8, 1) << x;
}

TEST(Resize, CropsTheMiddleOfAWideImage) {
  std::vector<uint8_t> wide(2 * 6, 0);
  for (const size_t i : {2, 3, 8, 9}) wide[i] = 200;
  std::vector<uint8_t> out(4);
  resize_to_cover(wide.data(), {1, 2, 6}, out.data(), {1, 2, 2});
  EXPECT_THAT(out, ElementsAre(200, 200, 200, 200));
}

const Files& pets() {
  static const Files files = {{"dog/b.png", png(6, 8, gradient(6, 8, 30))},
                              {"dog/a.JPG", jpeg(6, 8, 20)},
                              {"cat/z.jpeg", jpeg(6, 8, 10)},
                              {"dog/notes.txt", "not an image"},
                              {"cat/._z.jpeg", "what a Mac leaves"}};
  return files;
}

void expect_pets(const ImageParts& parts) {
  ASSERT_TRUE(parts.train);
  EXPECT_EQ(parts.test, nullptr);
  EXPECT_THAT(parts.train->class_names(), ElementsAre("cat", "dog"));
  ASSERT_EQ(parts.train->size(), 3);
  EXPECT_EQ(parts.train->shape(), (ImageShape{3, 6, 8}));
  EXPECT_EQ(parts.train->label(0), 0);
  EXPECT_EQ(parts.train->label(1), 1);
  EXPECT_EQ(decode_one(*parts.train, 2), planar(gradient(6, 8, 30)));  // dog/b.png after dog/a.JPG
}

TEST(ImageFolder, ALinkThatLeadsNowhereIsNoFolder) {
  const Scratch dir;
  for (const auto& [name, bytes] : pets()) dir.write("plain/" + name, bytes);
  namespace fs = std::filesystem;
  fs::create_symlink("loop", fs::path(dir.path("plain")) / "dog" / "loop");
  fs::create_symlink(".hidden", fs::path(dir.path("plain")) / "dog" / ".hidden");
  fs::create_symlink("absent", fs::path(dir.path("plain")) / "dog" / "nowhere");
  expect_pets(open_image_folder(dir.path("plain")));
}

TEST(ImageFolder, ReadsDirectoriesAndArchives) {
  const Scratch dir;
  for (const auto& [name, bytes] : pets()) dir.write("plain/" + name, bytes);
  expect_pets(open_image_folder(dir.path("plain")));
  for (const std::string archive : {"pets.tar", "pets.tar.gz"}) {
    write_tar(dir.path(archive), pets());
    expect_pets(open_image_folder(dir.path(archive)));
    Files dotted;
    for (const auto& [name, bytes] : pets()) dotted.emplace_back("./pets/" + name, bytes);
    write_tar(dir.path(archive), dotted);
    expect_pets(open_image_folder(dir.path(archive)));
  }
}

TEST(ImageFolder, LargeMembersAndLongNamesSurvive) {
  const Scratch dir;
  std::vector<uint8_t> noise(300 * 400 * 3);
  for (size_t i = 0; i < noise.size(); ++i) noise[i] = static_cast<uint8_t>((i * 2654435761U) >> 13);
  const std::string name = "class/" + std::string(150, 'n') + ".png";
  for (const std::string archive : {"a.tar", "a.tar.gz"}) {
    write_tar(dir.path(archive), {{name, png(300, 400, noise)}});
    EXPECT_EQ(decode_one(*open_image_folder(dir.path(archive)).train, 0), planar(noise));
  }
}

TEST(ImageFolder, TrainAndTestParts) {
  const Scratch dir;
  const Files files = {{"set/train/cat/1.jpg", jpeg(6, 8, 1)},
                       {"set/train/dog/1.jpg", jpeg(6, 8, 2)},
                       {"set/test/dog/9.jpg", jpeg(12, 16, 3)}};
  write_tar(dir.path("set.tar"), files);
  const ImageParts parts = open_image_folder(dir.path("set.tar"));
  EXPECT_EQ(parts.train->size(), 2);
  ASSERT_EQ(parts.test->size(), 1);
  EXPECT_EQ(parts.test->label(0), 1);  // as in training, although the test part has no cat
  EXPECT_EQ(parts.test->shape(), parts.train->shape());
  EXPECT_LE(largest_difference(decode_one(*parts.test, 0), planar(gradient(6, 8, 3))), 24);  // scaled down
}

TEST(ImageFolder, ATestClassThatTrainingLacksIsNamed) {
  const Scratch dir;
  write_tar(dir.path("a.tar"), {{"train/cat/1.jpg", jpeg(6, 8, 1)}, {"test/fox/1.jpg", jpeg(6, 8, 1)}});
  EXPECT_THAT(message_of([&] { open_image_folder(dir.path("a.tar")); }),
              HasSubstr("class fox of the test part"));
}

TEST(ImageFolder, EmptyClassFoldersAreNamed) {
  const Scratch dir;
  dir.write("pets/cat/1.jpg", jpeg(6, 8, 1));
  std::filesystem::create_directories(dir.path("pets/dog"));
  EXPECT_THAT(message_of([&] { open_image_folder(dir.path("pets")); }),
              HasSubstr("class folder dog holds no"));
  write_tar(dir.path("a.tar"), {{"cat/", ""}, {"cat/1.jpg", jpeg(6, 8, 1)}, {"dog/", ""}});
  EXPECT_THAT(message_of([&] { open_image_folder(dir.path("a.tar")); }),
              HasSubstr("class folder dog holds no"));
  std::filesystem::create_directories(dir.path("none"));
  EXPECT_THAT(message_of([&] { open_image_folder(dir.path("none")); }), HasSubstr("no JPEG or PNG"));
}

TEST(ImageFolder, ImagesOutsideClassFoldersAreNamed) {
  const Scratch dir;
  write_tar(dir.path("a.tar"), {{"cat/1.jpg", jpeg(6, 8, 1)}, {"lost.jpg", jpeg(6, 8, 1)}});
  EXPECT_THAT(message_of([&] { open_image_folder(dir.path("a.tar")); }),
              HasSubstr("lost.jpg is not in a class folder"));
}

TEST(ImageFolder, BrokenArchivesAreNamedWithTheOffset) {
  const Scratch dir;
  EXPECT_THAT(message_of([&] { open_image_folder(dir.path("none.tar")); }), HasSubstr("no such file"));
  dir.write("a.tar", "this is not a tar");
  EXPECT_THAT(message_of([&] { open_image_folder(dir.path("a.tar")); }),
              AllOf(HasSubstr("a.tar: offset"), HasSubstr("nrecognized")));
  dir.write("a.tar", "");
  EXPECT_THAT(message_of([&] { open_image_folder(dir.path("a.tar")); }), HasSubstr("empty"));
  for (const std::string archive : {"b.tar", "b.tar.gz"}) {
    write_tar(dir.path(archive), pets());
    const auto size = static_cast<std::ptrdiff_t>(std::filesystem::file_size(dir.path(archive)));
    dir.cut(archive, archive == "b.tar" ? 1024 + 100 : size / 2);
    EXPECT_THAT(message_of([&] { open_image_folder(dir.path(archive)); }),
                AllOf(HasSubstr(archive + ": offset"), HasSubstr("runcated")));
  }
}

TEST(ImageFolder, ABrokenImageIsNamedWhenItIsRead) {
  const Scratch dir;
  const std::string whole = jpeg(64, 64, 3);
  const Files files = {{"cat/1.jpg", whole}, {"cat/2.jpg", whole.substr(0, whole.size() / 2)}};
  for (const auto& [name, bytes] : files) dir.write("pets/" + name, bytes);
  write_tar(dir.path("a.tar"), files);
  for (const std::string path : {"pets", "a.tar"}) {
    const ImageParts parts = open_image_folder(dir.path(path));
    decode_one(*parts.train, 0);
    EXPECT_THAT(message_of([&] { decode_one(*parts.train, 1); }),
                AllOf(HasSubstr(dir.path(path)), HasSubstr("cat/2.jpg")));
  }
  std::filesystem::remove(dir.path("pets/cat/1.jpg"));
  EXPECT_THAT(message_of([&] {
                const ImageParts parts = open_image_folder(dir.path("pets"));
                std::filesystem::remove(dir.path("pets/cat/2.jpg"));
                decode_one(*parts.train, 0);
              }),
              HasSubstr("cat/2.jpg: No such file"));
}

}  // namespace
}  // namespace starling
