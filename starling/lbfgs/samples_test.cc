// Checks samples from files and from the generator, and the loss on them against its definition.
#include "starling/lbfgs/samples.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "starling/base/error.h"
#include "starling/lbfgs/logistic.h"
#include "starling/testing/error_of.h"
#include "starling/testing/temp_dir.h"

namespace starling {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(Samples, FilesOfTheUsualForms) {
  const TempDir folder;
  const std::string path = folder.file("data.csv");
  for (const char* text :
       {"a,b,label\n1,2.5,0\n-3e2,4,1\n", "1;2.5;0\r\n-3e2;4;1\r\n", "\n1 2.5 0\n\n -3e2   4 1 ",
        "1\t2.5\t0\n-3e2\t4\t1\n", "\xEF\xBB\xBF+1,2.5,0\n-3e2, +4 ,1",
        "\xEF\xBB\xBF"
        "a,b,c\n1,2.5,0\n-3e2,4,1"}) {
    write_bytes(path, text);
    const SampleTable table = read_csv_samples(path, LabelColumn::kLast);
    EXPECT_EQ(table.features, 2);
    EXPECT_EQ(table.count(), 2);
    EXPECT_THAT(table.values, ElementsAre(1, 2.5, -300, 4));
    EXPECT_THAT(table.labels, ElementsAre(0, 1));
  }
  write_bytes(path, "7,1,2\n3,4,5\n");
  const SampleTable first = read_csv_samples(path, LabelColumn::kFirst);
  EXPECT_THAT(first.labels, ElementsAre(7, 3));
  EXPECT_THAT(first.values, ElementsAre(1, 2, 4, 5));
}

TEST(Samples, BrokenFilesAreRefused) {
  const TempDir folder;
  const std::string path = folder.file("data.csv");
  for (const char* text : {"1,2,0\n1,2\n", "1,2,0\n1,2,3,1\n", "1,2,0\n1,x,1\n", "1,2,0\n1,nan,1\n",
                           "1,2,0\n1,1e999,1\n", "1,2,0\n1,2x,1\n", "a,b,c\nd,e,f\n"}) {
    write_bytes(path, text);
    EXPECT_THAT(error_of<DataError>([&] { read_csv_samples(path, LabelColumn::kLast); }),
                AllOf(HasSubstr(path), HasSubstr("line 2")))
        << text;
  }
  // A line with a number is no heading. Another separator, an empty field and a decimal comma are no numbers.
  for (const char* text : {"1,oops,0\n2,3,1\n", "1\n2\n", "nan,1,0\n2,3,1\n", "1,5;2,3;0\n2,5;3,5;1\n",
                           "1,,0\n2,3,1\n", "1,2,0,\n2,3,1,\n", "1 2\t0\n3 4\t1\n",
                           "+-1,2,0\n"}) {  // a sample is no heading; a label alone is none
    write_bytes(path, text);
    EXPECT_THAT(error_of<DataError>([&] { read_csv_samples(path, LabelColumn::kLast); }), HasSubstr("line 1"))
        << text;
  }
  write_bytes(path, "1,2,0\n1,,0\n");
  EXPECT_THAT(error_of<DataError>([&] { read_csv_samples(path, LabelColumn::kLast); }),
              HasSubstr("line 2: column 2 is empty. The file has commas"));
  write_bytes(path, "1;2;0\n1;2,5;0\n");
  EXPECT_THAT(error_of<DataError>([&] { read_csv_samples(path, LabelColumn::kLast); }),
              HasSubstr("line 2: column 2 has \"2,5\", which is no finite number. The file has semicolons"));
  EXPECT_THAT(error_of<DataError>([&] { read_csv_samples(folder.file("absent"), LabelColumn::kLast); }),
              HasSubstr("cannot be opened"));
}

TEST(Samples, LabelsAreZeroAndOne) {
  const auto table_of = [](std::vector<double> labels) {
    SampleTable table;
    table.name = "t", table.features = 1, table.labels = std::move(labels);
    table.values.assign(table.labels.size(), 1);
    return table;
  };
  const auto message = [](SampleTable table, std::optional<double> positive = {}) {
    return error_of<DataError>([&] { make_binary(table, positive); });
  };
  EXPECT_EQ(message(table_of({0, 1})), "");
  EXPECT_THAT(message(table_of({})), HasSubstr("no samples"));
  EXPECT_THAT(message(table_of({0, 1, 2})), AllOf(HasSubstr("sample 3"), HasSubstr("--positive")));
  EXPECT_THAT(message(table_of({0, 0.5})), HasSubstr("0.5"));
  EXPECT_THAT(message(table_of({1, 1})), HasSubstr("both labels must occur"));
  EXPECT_THAT(message(table_of({3, 4}), 7),
              HasSubstr("no sample has the label 7 of --positive; labels are 3, 4"));
  EXPECT_THAT(message(table_of({7, 7}), 7), HasSubstr("both labels must occur"));
  SampleTable infinite = table_of({0, 1});
  infinite.values[1] = INFINITY;
  EXPECT_THAT(message(infinite), HasSubstr("sample 2 has a feature that is not finite"));
  SampleTable digits = table_of({3, 7, 7, 1});
  make_binary(digits, 7);
  EXPECT_THAT(digits.labels, ElementsAre(0, 1, 1, 0));
}

TEST(Samples, GeneratedOnesAreAFunctionOfTheSeed) {
  const SampleTable a = make_samples({.count = 2000, .features = 5, .seed = 1});
  EXPECT_EQ(hash_of(a), hash_of(make_samples({.count = 2000, .features = 5, .seed = 1})));
  EXPECT_NE(hash_of(a), hash_of(make_samples({.count = 2000, .features = 5, .seed = 2})));
  SampleTable changed = a;
  changed.labels[0] = 1 - changed.labels[0];
  EXPECT_NE(hash_of(changed), hash_of(a));
  double squares = 0;
  for (int64_t i = 0; i < a.count(); ++i) squares += a.row(i)[0] * a.row(i)[0];
  EXPECT_NEAR(squares / 2000, 1, 0.15);
  EXPECT_THROW(make_samples({.count = 0}), ConfigError);
  EXPECT_THROW(make_samples({.features = 0}), ConfigError);
  EXPECT_THAT(error_of<ConfigError>([] { make_samples({.count = int64_t{1} << 32, .features = 1 << 24}); }),
              HasSubstr("give smaller --samples or --features"));
}

TEST(Logistic, IsItsDefinition) {
  SampleTable table = make_samples({.count = 300, .features = 4, .seed = 5});
  std::vector<double> w = {0.3, -2, 1, 0.5, -0.7}, gradient(5), ignored(5);
  const auto value = [&](const std::vector<double>& at) {
    double sum = 0;
    for (int64_t i = 20; i < 270; ++i) {
      double z = at[4];
      for (size_t j = 0; j < 4; ++j) z += at[j] * table.row(i)[j];
      sum += std::log(1 + std::exp(z)) - table.labels[static_cast<size_t>(i)] * z;
    }
    return sum;
  };
  EXPECT_NEAR(*logistic_sum(table, 20, 270, w, gradient, {}), value(w), 1e-10);
  for (size_t j = 0; j < w.size(); ++j) {
    std::vector<double> up = w, down = w;
    up[j] += 1e-6, down[j] -= 1e-6;
    EXPECT_NEAR(gradient[j], (value(up) - value(down)) / 2e-6, 1e-5) << j;
  }
  // Large margins neither overflow nor lose the loss.
  for (double& x : w) x *= 1e4;
  EXPECT_TRUE(std::isfinite(*logistic_sum(table, 0, 300, w, ignored, {})));
  EXPECT_EQ(logistic_sum(table, 0, 300, w, ignored, [] { return true; }), std::nullopt);
}

TEST(Logistic, PortionsCoverTheSamples) {
  for (const int64_t count : {1, 7, 100}) {
    for (const int portions : {1, 3, 64}) {
      int64_t next = 0;
      for (int portion = 0; portion < portions; ++portion) {
        const SampleRange range = samples_of(count, portions, portion);
        EXPECT_EQ(range.begin, next);
        EXPECT_LE(range.end - range.begin, (count + portions - 1) / portions);
        next = range.end;
      }
      EXPECT_EQ(next, count);
    }
  }
}

}  // namespace
}  // namespace starling
