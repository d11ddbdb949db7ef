// Reads ratings from files that change, and from files that no run can use.
#include "starling/factor/ratings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "starling/base/error.h"
#include "starling/factor/rating_stripe.h"
#include "starling/testing/temp_dir.h"

namespace starling {
namespace {

using testing::HasSubstr;

void write_text(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::trunc) << text;
}

// Returns the message of the DataError that `act` throws, or an empty text.
std::string refusal(const std::function<void()>& act) {
  try {
    act();
  } catch (const DataError& error) {
    return error.what();
  }
  return {};
}

// A source of 2 rows and 2 columns whose second visit has other entries than the first.
class ChangingRatings final : public RatingSource {
 public:
  ChangingRatings(std::vector<Rating> first, std::vector<Rating> second)
      : first_(std::move(first)), second_(std::move(second)) {}
  int64_t rows() const override { return 2; }
  int64_t columns() const override { return 2; }
  int64_t count() const override { return static_cast<int64_t>(first_.size()); }
  double mean() const override { return 1; }
  void visit(const Take& take) const override { take(visits_++ == 0 ? first_ : second_); }

 private:
  const std::vector<Rating> first_, second_;
  mutable int visits_ = 0;
};

// Returns the message of the error of a stripe that has all rows and a block for each column.
std::string refusal_of_stripe(std::vector<Rating> first, std::vector<Rating> second) {
  const ChangingRatings source(std::move(first), std::move(second));
  FactorizeOptions options;
  options.test_share = 0;
  MemoryBudget budget;
  return refusal([&] { RatingStripe(source, 1, 0, 2, options, budget); });
}

// The stripe takes memory for the entries of the first visit. More entries were written behind it.
TEST(RatingStripe, ASourceThatChangesIsRefused) {
  const std::vector<Rating> two = {{0, 0, 1}, {1, 1, 2}};
  EXPECT_EQ(refusal_of_stripe(two, two), "");
  EXPECT_THAT(refusal_of_stripe(two, {{0, 0, 1}, {1, 1, 2}, {1, 1, 3}}), HasSubstr("changed while"));
  EXPECT_THAT(refusal_of_stripe(two, {{0, 0, 1}, {1, 0, 2}}), HasSubstr("changed while"));
  EXPECT_THAT(refusal_of_stripe(two, {{0, 0, 1}}), HasSubstr("changed while"));
  EXPECT_THAT(refusal_of_stripe(two, {{0, 0, 1}, {1, 1000, 2}}), HasSubstr("changed while"));
  EXPECT_THAT(refusal_of_stripe({{0, 0, 1}, {1, 3, 2}}, two), HasSubstr("changed while"));
}

TEST(Ratings, AFileThatChangesIsRefused) {
  const TempDir folder;
  const std::string path = folder.file("ratings");
  const std::string text = "0 0 1\n0 1 2\n1 0 3\n";
  write_text(path, text);
  const auto source = open_ratings(path);
  int64_t seen = 0;
  const auto visit = [&] {
    seen = 0;
    source->visit([&](std::span<const Rating> piece) {
      for (const Rating& rating : piece) {
        EXPECT_LT(rating.row, source->rows());
        EXPECT_LT(rating.column, source->columns());
      }
      seen += static_cast<int64_t>(piece.size());
    });
  };
  visit();
  EXPECT_EQ(seen, 3);
  for (const char* other : {"0 0 1\n0 1 2\n1 0 3\n0 1 2\n", "0 0 1\n0 1 2\n", "0 0 1\n0 1 2\n1 0 4\n",
                            "0 0 1\n1 0 3\n0 1 2\n", "0 0 1\n0 1 2\n1 9 3\n", "0 0 1\n0 1 2\n9 0 3\n"}) {
    write_text(path, other);
    EXPECT_THAT(refusal(visit), HasSubstr("the file changed while it was read")) << other;
  }
  write_text(path, text);
  visit();
  EXPECT_EQ(seen, 3);
}

// Rows without entries take memory: 751 MB from the 14 bytes of "10000000 0 1", at 10 factors.
TEST(Ratings, ASmallFileHasNoLargeMatrix) {
  const TempDir folder;
  const std::string path = folder.file("ratings");
  for (const char* text : {"10000000 0 1\n0 1 2\n", "2147483647 0 1\n0 1 2\n"}) {
    write_text(path, text);
    EXPECT_THAT(refusal([&] { open_ratings(path); }),
                AllOf(HasSubstr("is too large for a file of 2 ratings; the largest is 8388615"),
                      HasSubstr("the row number ")));
  }
  write_text(path, "0 8388616 1\n1 1 2\n");
  EXPECT_THAT(refusal([&] { open_ratings(path); }), HasSubstr("the column number 8388616"));
  // The largest numbers of a few lines of Netflix, and the limit.
  for (const char* text : {"2649429 17770 5\n", "8388615 8388615 1\n0 0 1\n"}) {
    write_text(path, text);
    EXPECT_EQ(refusal([&] { open_ratings(path); }), "") << text;
  }
}

TEST(Ratings, AFirstLineOfNumbersIsNoHeading) {
  const TempDir folder;
  const std::string path = folder.file("ratings");
  for (const char* text :
       {"\xef\xbb\xbf"
        "0 0 1\n0 1 2\n1 0 3\n",
        "\xef\xbb\xbfuser,item,rating\n0,0,1\n0,1,2\n1,0,3\n", "user item rating\n0 0 1\n0 1 2\n1 0 3\n"}) {
    write_text(path, text);
    EXPECT_EQ(open_ratings(path)->count(), 3) << text;
  }
  for (const char* text : {"-1 0 1\n0 1 2\n", ".5,0,1\n0 1 2\n", "-1\t2\t-3\t99\n0 1 2\n"}) {
    write_text(path, text);
    EXPECT_THAT(refusal([&] { open_ratings(path); }), HasSubstr("line 1")) << text;
  }
}

// A pipe gives its content once.
TEST(Ratings, WhatIsNoRegularFileIsRefused) {
  const TempDir folder;
  EXPECT_THAT(refusal([] { open_ratings("/dev/null"); }), HasSubstr("is no regular file"));
  EXPECT_THAT(refusal([&] { open_ratings(folder.path()); }), HasSubstr("is no regular file"));
}

}  // namespace
}  // namespace starling
