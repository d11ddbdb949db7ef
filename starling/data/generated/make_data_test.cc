#include "starling/data/generated/make_data.h"

#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>

#include "starling/data/formats/inspect.h"
#include "starling/data/source_factory.h"
#include "starling/data/testing/files.h"

namespace starling {
namespace {

using ::testing::HasSubstr;
using testing_files::message_of;
using testing_files::Scratch;

DataSpec small(const std::string& source) {
  DataSpec spec;
  spec.source = source, spec.samples = 50, spec.test_samples = 20;
  return spec;
}

TEST(MakeData, DigitsReadBackAsTheyWereGenerated) {
  const DataSets made = open_data(small("digits"), 3, 0);
  for (const bool gzip : {false, true}) {
    const Scratch dir;
    make_data(small("digits"), 3, dir.path("out/digits"), {.gzip = gzip});
    EXPECT_EQ(std::filesystem::exists(dir.path("out/digits/train-images-idx3-ubyte.gz")), gzip);
    DataSpec spec;
    spec.source = "idx:" + dir.path("out/digits");
    const DataSets read = open_data(spec, 0, 0);
    ASSERT_EQ(read.train->size(), 50);
    ASSERT_EQ(read.test->size(), 20);
    std::vector<int64_t> all(50), test(20);
    std::iota(all.begin(), all.end(), 0), std::iota(test.begin(), test.end(), 0);
    const Batch a = made.train->read(all, 0), b = read.train->read(all, 0);
    EXPECT_TRUE(at::equal(a.input, b.input));
    EXPECT_TRUE(at::equal(a.target, b.target));
    EXPECT_TRUE(at::equal(made.test->read(test, 0).input, read.test->read(test, 0).input));
  }
}

TEST(MakeData, GrammarReadsBackAsText) {
  const Scratch dir;
  make_data(small("grammar"), 3, dir.path());
  DataSpec spec;
  spec.source = "text:" + dir.path("grammar.txt");
  const DataSets read = open_data(spec, 0, 64);
  EXPECT_GT(read.train->size(), 50);
  EXPECT_GT(read.test->size(), 1);
}

TEST(MakeData, RefusesWhatItCannotMakeOrWrite) {
  const Scratch dir;
  EXPECT_THAT(message_of<Error>([&] { make_data(small("idx:/x"), 0, dir.path()); }),
              HasSubstr("digits or grammar"));
  dir.write("file", "x");
  EXPECT_THAT(message_of([&] { make_data(small("digits"), 0, dir.path("file/sub")); }),
              HasSubstr("cannot make the folder"));
  std::filesystem::create_directories(dir.path("grammar.txt"));
  EXPECT_THAT(message_of<Error>([&] { make_data(small("grammar"), 0, dir.path()); }),
              HasSubstr("grammar.txt exists and is not replaced"));
  EXPECT_THAT(message_of([&] { make_data(small("grammar"), 0, dir.path(), {.replace = true}); }),
              HasSubstr("grammar.txt: cannot write"));
}

TEST(Inspect, DescribesImages) {
  const DataReport report = inspect_data(small("digits"), 3, 0);
  EXPECT_EQ(report.train_samples, 50);
  EXPECT_EQ(report.test_samples, 20);
  EXPECT_EQ(report.label_histogram, std::vector<int64_t>(10, 5));
  EXPECT_GT(report.mean[0], 0.02);
  EXPECT_LT(report.mean[0], 0.5);
  EXPECT_GT(report.std[0], 0.1);
  EXPECT_EQ(std::count(report.preview.begin(), report.preview.end(), '\n'), 28);
  EXPECT_THAT(report.preview, HasSubstr("@@"));
  EXPECT_THAT(to_text(report), HasSubstr("50 training, 20 test"));
  const auto json = nlohmann::json::parse(to_json(report));
  EXPECT_EQ(json["classes"], 10);
  EXPECT_EQ(json["label_histogram"].size(), 10u);
}

TEST(Inspect, DescribesText) {
  const Scratch dir;
  DataSpec spec;
  spec.source = "text:" + dir.write("t.txt", "To be, or not to be: café");
  spec.validation = 0;
  const DataReport report = inspect_data(spec, 0, 4);
  EXPECT_TRUE(report.text);
  EXPECT_EQ(report.train_samples, 6);
  EXPECT_EQ(report.preview, "To be, or not to be: caf");
  EXPECT_EQ(std::accumulate(report.label_histogram.begin(), report.label_histogram.end(), int64_t{0}), 24);
  EXPECT_THAT(to_text(report), HasSubstr("no test part"));
  EXPECT_EQ(nlohmann::json::parse(to_json(report))["kind"], "text");
}

}  // namespace
}  // namespace starling
