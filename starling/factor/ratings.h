// The known entries of a matrix V as a stream. No rank needs to hold all of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

namespace starling {

// V[row][column] = value, in 12 bytes.
struct Rating {
  uint32_t row = 0;
  uint32_t column = 0;
  float value = 0;
};

// A source of entries. Every visit and every rank gets equal entries in equal order.
class RatingSource {
 public:
  virtual ~RatingSource() = default;
  // Returns the number of rows of V.
  virtual int64_t rows() const = 0;
  // Returns the number of columns of V.
  virtual int64_t columns() const = 0;
  // Returns the number of known entries.
  virtual int64_t count() const = 0;
  // Returns the mean of the values.
  virtual double mean() const = 0;
  // Receives some entries. They are valid during the call.
  using Take = std::function<void(std::span<const Rating>)>;
  // Calls take() with all entries, at most kRatingsAtOnce at a time. Errors: DataError if a file cannot be
  // read, or if it has other entries than before. take() may then have received some of them, but none with a
  // row or column beyond rows() and columns().
  virtual void visit(const Take& take) const = 0;
};

// Most entries that a source passes to take() at once.
inline constexpr size_t kRatingsAtOnce = 4096;

// Opens a text file that has a row number, a column number and a value on each line. Commas, tabs, blanks,
// ';' or "::" separate them. Further columns are ignored. A first line that begins neither with a digit
// nor with three numbers is a heading. A byte order mark is skipped. Numbers begin at 0 or 1, and they
// determine the size of the matrix. They may have gaps, but a number above 2^23 + 4 × the entries is refused.
// Two lines of one row and column are two entries, and both count. The file is read several times and must be
// a regular file. Errors: DataError that names the file and the line.
std::unique_ptr<RatingSource> open_ratings(const std::string& path);

// The settings of generated entries.
struct GeneratedRatings {
  int64_t rows = 2000;
  int64_t columns = 1000;
  int64_t count = 100'000;  // number of entries, drawn with replacement
  int64_t factors = 8;      // rank of the hidden matrix
  double noise = 0.1;       // standard deviation of the noise
  uint64_t seed = 0;
};
// Makes entries of W·H + noise. The seed determines the hidden W and H. The mean of the values is about 3.
// Errors: ConfigError if rows, columns, count or factors is below 1, or if there are 2^31 rows or columns.
std::unique_ptr<RatingSource> make_ratings(const GeneratedRatings& spec);

// Returns whether an entry is kept for testing. `share` is the fraction of entries that are kept. The result
// depends on the seed, the row, the column and `share` only.
bool is_test_rating(const Rating& rating, double share, uint64_t seed);

}  // namespace starling
