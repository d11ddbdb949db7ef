#include "starling/data/source_factory.h"

#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "starling/data/formats/image_source.h"
#include "starling/data/generated/digits.h"
#include "starling/data/testing/files.h"

namespace starling {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing_files::jpeg;
using testing_files::message_of;
using testing_files::Scratch;
using testing_files::write_tar;

DataSpec spec_of(const std::string& source) {
  DataSpec spec;
  spec.source = source;
  return spec;
}

std::string refusal(const DataSpec& spec) {
  return message_of<Error>([&] { open_data(spec, 0, 16); });
}

std::vector<float> floats(const at::Tensor& tensor) {
  return {tensor.const_data_ptr<float>(), tensor.const_data_ptr<float>() + tensor.numel()};
}

TEST(Factory, GeneratedDigits) {
  const DataSets sets = open_data(spec_of("digits"), 5, 0);
  EXPECT_EQ(sets.train->size(), 8192);
  EXPECT_EQ(sets.test->size(), 1024);
  EXPECT_EQ(sets.train->info().input_shape, (std::vector<int64_t>{1, 28, 28}));
  EXPECT_EQ(sets.train->info().classes, 10);
  const Batch batch = sets.train->read({3, 8191}, 0);
  EXPECT_EQ(batch.input.sizes(), (std::vector<int64_t>{2, 1, 28, 28}));
  EXPECT_EQ(batch.target.scalar_type(), at::kLong);
  EXPECT_FALSE(at::equal(batch.input, sets.test->read({3, 4}, 0).input));
  DataSpec small = spec_of("digits");
  small.samples = 30, small.test_samples = 20;
  EXPECT_EQ(open_data(small, 5, 0).train->size(), 30);
  EXPECT_TRUE(at::equal(open_data(small, 5, 0).train->read({3}, 0).input, batch.input.slice(0, 0, 1)));
}

TEST(Factory, GeneratedGrammar) {
  const DataSets sets = open_data(spec_of("grammar"), 5, 32);
  EXPECT_EQ(sets.train->info().input_shape, std::vector<int64_t>{32});
  EXPECT_EQ(sets.train->info().classes, static_cast<int64_t>(sets.train->info().vocabulary.size()));
  EXPECT_EQ(sets.test->info().vocabulary, sets.train->info().vocabulary);
  EXPECT_FALSE(at::equal(sets.train->read({0}, 0).input, sets.test->read({0}, 0).input));
}

TEST(Factory, UnknownKindsGetASuggestion) {
  EXPECT_THAT(refusal(spec_of("digit")),
              AllOf(HasSubstr("data.source"), HasSubstr("did you mean \"digits\"")));
  EXPECT_THAT(refusal(spec_of("image:/x")), HasSubstr("did you mean \"images\""));
  EXPECT_THAT(refusal(spec_of("parquet:/x")), AllOf(HasSubstr("unknown kind"), HasSubstr("cifar-bin:DIR")));
  EXPECT_THAT(refusal(spec_of("idx")), HasSubstr("idx:PATH"));
  EXPECT_THAT(refusal(spec_of("digits:9")), HasSubstr("takes no path"));
}

TEST(Factory, BadNumbersAreRefused) {
  DataSpec spec = spec_of("digits");
  spec.samples = -1;
  EXPECT_THAT(refusal(spec), HasSubstr("data.samples"));
  spec = spec_of("digits"), spec.pad = -1;
  EXPECT_THAT(refusal(spec), HasSubstr("data.pad"));
  spec = spec_of("grammar"), spec.validation = 1;
  EXPECT_THAT(refusal(spec), HasSubstr("data.validation"));
  spec = spec_of("grammar"), spec.test_source = "digits";
  EXPECT_THAT(refusal(spec), HasSubstr("cannot be mixed"));
}

TEST(Factory, ATestArchiveOfItsOwnAndSampleLimits) {
  const Scratch dir;
  std::vector<std::pair<std::string, std::string>> train, test;
  for (int i = 0; i < 20; ++i) {
    train.emplace_back((i % 2 ? "dog/" : "cat/") + std::to_string(i) + ".jpg", jpeg(8, 8, 10 * i));
  }
  test.emplace_back("dog/1.jpg", jpeg(8, 8, 40));
  write_tar(dir.path("train.tar.gz"), train);
  write_tar(dir.path("test.tar"), test);
  DataSpec spec = spec_of("images:" + dir.path("train.tar.gz"));
  EXPECT_EQ(open_data(spec, 0, 0).test, nullptr);
  for (const std::string prefix : {"images:", ""}) {
    spec.test_source = prefix + dir.path("test.tar");
    const DataSets sets = open_data(spec, 0, 0);
    EXPECT_EQ(sets.test->size(), 1);
    EXPECT_EQ(sets.test->read({0}, 0).target.item<int64_t>(), 1);
  }
  spec.samples = 10;
  const DataSets some = open_data(spec, 0, 0);
  ASSERT_EQ(some.train->size(), 10);
  const at::Tensor target = some.train->read({0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, 0).target;
  EXPECT_GT(target.sum().item<int64_t>(), 0);  // not the first ten, which are all cats
  EXPECT_LT(target.sum().item<int64_t>(), 10);
  spec.samples = 21;
  EXPECT_THAT(refusal(spec), AllOf(HasSubstr("data.samples"), HasSubstr("has 20")));
}

TEST(Factory, TestImagesMustFit) {
  const Scratch dir;
  write_tar(dir.path("a.tar"), {{"cat/1.jpg", jpeg(8, 8, 1)}});
  DataSpec spec = spec_of("images:" + dir.path("a.tar"));
  spec.test_source = "digits";
  EXPECT_THAT(refusal(spec), HasSubstr("do not fit"));
}

TEST(ImageSource, NormalizesAsTheFormulaSays) {
  const auto store = make_digits(1, 4);
  const Normalization norm{{0.25}, {0.5}};
  const at::Tensor input = make_image_source("d", store, norm, {})->read({2}, 0).input;
  const std::vector<uint8_t> pixels = testing_files::decode_one(*store, 2);
  for (size_t i = 0; i < pixels.size(); ++i) {
    EXPECT_FLOAT_EQ(floats(input)[i], static_cast<float>((pixels[i] / 255.0 - 0.25) / 0.5));
  }
}

TEST(ImageSource, MeasuresMeanAndDeviation) {
  std::vector<uint8_t> pixels(2 * 3 * 4);
  for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = i / 4 % 3 == 0 ? (i % 2 ? 0 : 255) : 51;
  const MemoryImages store({3, 2, 2}, pixels, {0, 1}, 2, {});
  const Normalization norm = normalization_for(store);
  EXPECT_NEAR(norm.mean[0], 0.5, 1e-12);
  EXPECT_NEAR(norm.std[0], 0.5, 1e-12);
  EXPECT_NEAR(norm.mean[1], 0.2, 1e-12);
  EXPECT_NEAR(norm.std[2], 1.0 / 255, 1e-12);  // never zero
}

// Naive reference: computes each pixel by its definition, over all possible shifts and flips.
bool is_shift_of(const std::vector<float>& out, const std::vector<uint8_t>& in, ImageShape s, int dx, int dy,
                 bool flip) {
  for (int c = 0; c < s.channels; ++c) {
    for (int y = 0; y < s.height; ++y) {
      for (int x = 0; x < s.width; ++x) {
        const int fx = (flip ? s.width - 1 - x : x) + dx, fy = y + dy;
        const bool inside = fx >= 0 && fx < s.width && fy >= 0 && fy < s.height;
        const float want =
            inside ? static_cast<float>(in[(static_cast<size_t>(c) * s.height + fy) * s.width + fx] / 255.0)
                   : 0;
        if (std::abs(out[(static_cast<size_t>(c) * s.height + y) * s.width + x] - want) > 1e-6) return false;
      }
    }
  }
  return true;
}

void expect_augmented(const std::shared_ptr<const ImageStore>& store, bool may_flip) {
  const auto source = make_image_source("x", store, no_normalization(store->shape().channels), {true, 2, 9});
  const std::vector<uint8_t> original = testing_files::decode_one(*store, 0);
  int flips = 0, moved = 0;
  for (int64_t epoch = 0; epoch < 30; ++epoch) {
    const std::vector<float> out = floats(source->read({0}, epoch).input);
    bool found = false;
    for (int k = 0; k < 50 && !found; ++k) {
      const int dx = k % 5 - 2, dy = k / 5 % 5 - 2;
      found = is_shift_of(out, original, store->shape(), dx, dy, k >= 25);
      flips += found && k >= 25;
      moved += found && (dx != 0 || dy != 0);
    }
    EXPECT_TRUE(found) << "epoch " << epoch;
  }
  EXPECT_GT(moved, 15);
  EXPECT_EQ(flips > 0, may_flip);
  EXPECT_LT(flips, 30);
}

TEST(ImageSource, AugmentationShiftsAndFlipsColor) {
  std::vector<uint8_t> pixels(3 * 6 * 7);
  for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<uint8_t>(7 * i + 1);
  expect_augmented(std::make_shared<MemoryImages>(ImageShape{3, 6, 7}, pixels, std::vector<uint8_t>{0}, 1,
                                                  std::vector<std::string>{}),
                   true);
}

TEST(ImageSource, AugmentationNeverFlipsGrey) {
  expect_augmented(make_digits(1, 1), false);
}

TEST(Digits, AreAFunctionOfSeedAndIndex) {
  const auto small = make_digits(7, 10), large = make_digits(7, 1000);
  EXPECT_EQ(testing_files::decode_one(*small, 9), testing_files::decode_one(*large, 9));
  EXPECT_NE(testing_files::decode_one(*small, 9), testing_files::decode_one(*make_digits(8, 10), 9));
  std::vector<uint8_t> alone(28 * 28);
  draw_digit(7, 9, alone.data());
  EXPECT_EQ(alone, testing_files::decode_one(*small, 9));
}

TEST(Digits, ClassesAreBalancedAndInkIsThere) {
  const auto store = make_digits(2, 400);
  std::vector<int> count(10);
  for (int64_t i = 0; i < store->size(); ++i) {
    ++count[static_cast<size_t>(store->label(i))];
    const std::vector<uint8_t> pixels = testing_files::decode_one(*store, i);
    const auto bright = std::count_if(pixels.begin(), pixels.end(), [](uint8_t p) { return p > 64; });
    EXPECT_GT(bright, 15) << i;
    EXPECT_LT(bright, 400) << i;
  }
  EXPECT_EQ(count, std::vector<int>(10, 40));
}

// The distance between images of one class is smaller than between classes, but nearest means do not solve
// the task.
TEST(Digits, CanBeToldApartButNotTrivially) {
  const auto store = make_digits(3, 2000);
  std::vector<std::vector<double>> mean(10, std::vector<double>(784));
  for (int64_t i = 0; i < 1000; ++i) {
    const std::vector<uint8_t> pixels = testing_files::decode_one(*store, i);
    for (size_t k = 0; k < 784; ++k) mean[static_cast<size_t>(store->label(i))][k] += pixels[k] / 100.0;
  }
  int right = 0;
  for (int64_t i = 1000; i < 2000; ++i) {
    const std::vector<uint8_t> pixels = testing_files::decode_one(*store, i);
    std::vector<double> distance(10);
    for (size_t c = 0; c < 10; ++c) {
      for (size_t k = 0; k < 784; ++k) distance[c] += (mean[c][k] - pixels[k]) * (mean[c][k] - pixels[k]);
    }
    right += std::min_element(distance.begin(), distance.end()) - distance.begin() == store->label(i);
  }
  EXPECT_GT(right, 500);
  EXPECT_LT(right, 950);
}

}  // namespace
}  // namespace starling
