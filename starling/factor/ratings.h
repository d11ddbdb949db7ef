// The known entries of a matrix V, streamed: nobody needs to hold them all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

namespace starling {

// V[row][column] = value. 12 bytes.
struct Rating {
  uint32_t row = 0;
  uint32_t column = 0;
  float value = 0;
};

// The same entries in the same order in every visit and on every rank.
class RatingSource {
 public:
  virtual ~RatingSource() = default;
  virtual int64_t rows() const = 0;
  virtual int64_t columns() const = 0;
  virtual int64_t count() const = 0;
  virtual double mean() const = 0;  // of the values
  // Calls take() with all entries, at most kRatingsAtOnce at a time.
  using Take = std::function<void(std::span<const Rating>)>;
  virtual void visit(const Take& take) const = 0;
};

inline constexpr size_t kRatingsAtOnce = 4096;

// A text file with a row number, a column number and a value a line, between commas, tabs, blanks, ';' or "::", more columns are
// passed over; a first line without numbers is a heading. Numbers begin at 0 or 1; the matrix is as large as they say. Errors:
// DataError naming file and line.
std::unique_ptr<RatingSource> open_ratings(const std::string& path);

struct GeneratedRatings {
  int64_t rows = 2000;
  int64_t columns = 1000;
  int64_t count = 100'000;  // entries, drawn with replacement
  int64_t factors = 8;      // rank of the hidden matrix
  double noise = 0.1;       // standard deviation
  uint64_t seed = 0;
};
// Entries of W·H + noise for hidden W and H that are functions of the seed: mean about 3.
std::unique_ptr<RatingSource> make_ratings(const GeneratedRatings& spec);

// Whether an entry is kept for testing, a function of (seed, row, column).
bool is_test_rating(const Rating& rating, double share, uint64_t seed);

}  // namespace starling
