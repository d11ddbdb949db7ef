// Tests IDX and CIFAR files: written files can be read, and messages name what is broken.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <numeric>

#include "starling/data/formats/cifar.h"
#include "starling/data/formats/idx.h"
#include "starling/data/testing/files.h"

namespace starling {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing_files::decode_one;
using testing_files::message_of;
using testing_files::Scratch;

IdxImages some_images(int count) {
  IdxImages images{5, 4, std::vector<uint8_t>(static_cast<size_t>(count) * 20)};
  std::iota(images.pixels.begin(), images.pixels.end(), uint8_t{0});
  return images;
}

// Writes a whole data set. `joint` is the character before "idx".
void write_set(const Scratch& dir, const std::string& joint = "-", const std::string& packed = "") {
  for (const std::string part : {"train", "t10k"}) {
    write_idx_images(dir.path(part + "-images" + joint + "idx3-ubyte" + packed), some_images(6));
    write_idx_labels(dir.path(part + "-labels" + joint + "idx1-ubyte" + packed), {0, 1, 9, 3, 4, 5});
  }
}

TEST(Idx, RoundTripInAllNamings) {
  for (const std::string joint : {"-", "."}) {
    for (const std::string packed : {"", ".gz"}) {
      const Scratch dir;
      write_set(dir, joint, packed);
      const ImageParts parts = open_idx(dir.path());
      EXPECT_EQ(parts.train->size(), 6);
      EXPECT_EQ(parts.train->classes(), 10);
      EXPECT_EQ(parts.train->shape(), (ImageShape{1, 5, 4}));
      EXPECT_EQ(parts.train->label(2), 9);
      const IdxImages images = some_images(6);
      EXPECT_EQ(decode_one(*parts.test, 3),
                std::vector<uint8_t>(images.pixels.begin() + 60, images.pixels.begin() + 80));
    }
  }
}

TEST(Idx, PlainFilesHaveTheFormatsBytes) {
  const Scratch dir;
  write_idx_labels(dir.path("labels"), {7, 8});
  EXPECT_EQ(dir.read("labels"), std::string("\0\0\x08\x01\0\0\0\x02\x07\x08", 10));
}

TEST(Idx, WithoutTestFilesThereIsNoTestPart) {
  const Scratch dir;
  write_set(dir);
  std::filesystem::remove(dir.path("t10k-images-idx3-ubyte"));
  EXPECT_THAT(message_of([&] { open_idx(dir.path()); }), HasSubstr("no t10k-images-idx3-ubyte"));
  std::filesystem::remove(dir.path("t10k-labels-idx1-ubyte"));
  EXPECT_EQ(open_idx(dir.path()).test, nullptr);
}

TEST(Idx, MissingFilesAndFoldersAreNamed) {
  const Scratch dir;
  EXPECT_THAT(message_of([&] { open_idx(dir.path()); }),
              AllOf(HasSubstr(dir.path()), HasSubstr("the folder has no train-images-idx3-ubyte")));
  EXPECT_THAT(message_of([&] { open_idx(dir.path("none")); }),
              AllOf(HasSubstr(dir.path("none")), HasSubstr("the folder does not exist")));
  EXPECT_THAT(message_of([&] { read_idx_images(dir.path("none")); }), HasSubstr("No such file"));
}

TEST(Idx, TruncationIsNamedWithItsOffset) {
  for (const std::string packed : {"", ".gz"}) {
    const Scratch dir;
    write_set(dir, "-", packed);
    const std::string name = "train-images-idx3-ubyte" + packed;
    dir.cut(name, packed.empty() ? 50 : -9);
    EXPECT_THAT(message_of([&] { open_idx(dir.path()); }),
                AllOf(HasSubstr(dir.path(name)), HasSubstr(packed.empty() ? "offset 50" : "offset "),
                      HasSubstr("truncated")));
    dir.cut(name, 3);
    EXPECT_THAT(message_of([&] { open_idx(dir.path()); }), HasSubstr("truncated"));
  }
}

TEST(Idx, DamagedGzipIsFound) {
  const Scratch dir;
  write_set(dir, "-", ".gz");
  std::string bytes = dir.read("train-images-idx3-ubyte.gz");
  bytes[bytes.size() - 6] ^= 1;  // a bit of the checksum
  dir.write("train-images-idx3-ubyte.gz", bytes);
  EXPECT_THAT(message_of([&] { open_idx(dir.path()); }), HasSubstr("incorrect data check"));
}

TEST(Idx, WrongMagicIsNamed) {
  const Scratch dir;
  write_set(dir);
  std::filesystem::copy_file(dir.path("t10k-labels-idx1-ubyte"), dir.path("train-images-idx3-ubyte"),
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_THAT(message_of([&] { open_idx(dir.path()); }),
              AllOf(HasSubstr("offset 0"), HasSubstr("0x00000801"), HasSubstr("0x00000803")));
}

TEST(Idx, AHostileHeaderCostsNoMemory) {
  const Scratch dir;
  // Sixteen bytes that announce two million images of 256 x 256: 128 GiB.
  const std::string path = dir.write("images", std::string("\0\0\x08\x03\0\x20\0\0\0\0\x01\0\0\0\x01\0", 16));
  EXPECT_THAT(message_of([&] { read_idx_images(path); }),
              AllOf(HasSubstr("offset 16"), HasSubstr("truncated")));
  dir.write("images", std::string("\0\0\x08\x03\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 16));
  EXPECT_THAT(message_of([&] { read_idx_images(path); }), HasSubstr("offset 8"));
  dir.write("images", std::string("\0\0\x08\x03\xff\xff\xff\xff\0\0\x20\0\0\0\x20\0", 16));
  EXPECT_THAT(message_of([&] { read_idx_images(path); }), HasSubstr("too large"));
  dir.write("images", std::string("\0\0\x08\x03\0\0\0\0\0\0\0\x04\0\0\0\x04", 16));
  EXPECT_THAT(message_of([&] { read_idx_images(path); }), HasSubstr("no images"));
}

TEST(Idx, TrailingBytesAreRefused) {
  const Scratch dir;
  const std::string path = dir.path("labels");
  write_idx_labels(path, {1, 2, 3});
  dir.write("labels", dir.read("labels") + "x");
  EXPECT_THAT(message_of([&] { read_idx_labels(path); }),
              AllOf(HasSubstr("offset 11"), HasSubstr("more bytes")));
}

TEST(Idx, LabelsMustFitImagesAndClasses) {
  const Scratch dir;
  write_set(dir);
  write_idx_labels(dir.path("train-labels-idx1-ubyte"), {0, 1, 2});
  EXPECT_THAT(message_of([&] { open_idx(dir.path()); }), HasSubstr("3 labels, but 6 images"));
  write_idx_labels(dir.path("train-labels-idx1-ubyte"), {0, 1, 2, 200, 4, 5});
  EXPECT_THAT(message_of([&] { open_idx(dir.path()); }),
              AllOf(HasSubstr("offset 11"), HasSubstr("label 200 of sample 3")));
}

std::string cifar_records(int count, int label_bytes) {
  std::string bytes;
  for (int i = 0; i < count; ++i) {
    if (label_bytes == 2) bytes.push_back(0);
    bytes.push_back(static_cast<char>(i));
    for (int k = 0; k < 3072; ++k) bytes.push_back(static_cast<char>(i + k / 1024));
  }
  return bytes;
}

void write_cifar10(const Scratch& dir) {
  for (int i = 1; i <= 5; ++i) dir.write("data_batch_" + std::to_string(i) + ".bin", cifar_records(4, 1));
  dir.write("test_batch.bin", cifar_records(3, 1));
}

TEST(Cifar, ReadsTenClasses) {
  const Scratch dir;
  write_cifar10(dir);
  dir.write("batches.meta.txt", "airplane\nautomobile\nbird\ncat\ndeer\ndog\nfrog\nhorse\nship\ntruck\n\n");
  const ImageParts parts = open_cifar(dir.path());
  EXPECT_EQ(parts.train->size(), 20);
  EXPECT_EQ(parts.test->size(), 3);
  EXPECT_EQ(parts.train->classes(), 10);
  EXPECT_EQ(parts.train->class_names()[3], "cat");
  EXPECT_EQ(parts.train->label(6), 2);
  EXPECT_EQ(decode_one(*parts.train, 6)[2048], 4);
}

TEST(Cifar, ReadsTheFineLabelsOfAHundredClasses) {
  const Scratch dir;
  dir.write("train.bin", cifar_records(4, 2));
  const ImageParts parts = open_cifar(dir.path());
  EXPECT_EQ(parts.train->classes(), 100);
  EXPECT_EQ(parts.train->label(3), 3);
  EXPECT_EQ(parts.test, nullptr);
}

TEST(Cifar, BrokenFilesAreNamed) {
  const Scratch dir;
  write_cifar10(dir);
  dir.cut("data_batch_3.bin", -1);
  EXPECT_THAT(message_of([&] { open_cifar(dir.path()); }),
              AllOf(HasSubstr("data_batch_3.bin: offset 12291: truncated"), HasSubstr("begins at 9219")));
  dir.write("data_batch_3.bin", cifar_records(12, 1));
  EXPECT_THAT(message_of([&] { open_cifar(dir.path()); }),
              AllOf(HasSubstr("data_batch_3.bin: offset 30730"), HasSubstr("label 10 of record 10")));
  dir.write("data_batch_3.bin", "");
  EXPECT_THAT(message_of([&] { open_cifar(dir.path()); }), HasSubstr("empty"));
  std::filesystem::remove(dir.path("data_batch_3.bin"));
  EXPECT_THAT(message_of([&] { open_cifar(dir.path()); }), HasSubstr("data_batch_3.bin: No such file"));
}

}  // namespace
}  // namespace starling
