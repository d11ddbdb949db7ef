#include "starling/factor/ratings.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cctype>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <string_view>
#include <system_error>
#include <vector>

#include "starling/base/error.h"
#include "starling/base/keyed_random.h"
#include "starling/base/unopened_file.h"

namespace starling {
namespace {

constexpr uint32_t kMaxIndex = 0x7fffffff;
// A file may have this many rows and columns, and more for each entry. A row takes memory even if it has no
// entry, so a small file must not ask for a large matrix. The numbers of real data sets have gaps: those of
// Netflix reach 2,649,429 for 480,189 users.
constexpr int64_t kFreeRows = int64_t{1} << 23;
constexpr int64_t kRowsPerEntry = 4;
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

// Collects entries and passes them on in pieces of at most kRatingsAtOnce.
class Pieces {
 public:
  explicit Pieces(const RatingSource::Take& take) : take_(take) { piece_.reserve(kRatingsAtOnce); }
  void add(const Rating& rating) {
    piece_.push_back(rating);
    if (piece_.size() == kRatingsAtOnce) flush();
  }
  void flush() {
    if (!piece_.empty()) take_(piece_);
    piece_.clear();
  }

 private:
  const RatingSource::Take& take_;
  std::vector<Rating> piece_;
};

bool is_separator(char c) {
  return c == ',' || c == '\t' || c == ' ' || c == ';' || c == ':' || c == '\r';
}

// Removes the next number from a line and returns it. Returns nothing if there is none.
template <typename T>
std::optional<T> take_number(std::string_view& line) {
  while (!line.empty() && is_separator(line.front())) line.remove_prefix(1);
  T value{};
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), value);
  if (error != std::errc() || end == line.data()) return std::nullopt;
  line.remove_prefix(static_cast<size_t>(end - line.data()));
  if (!line.empty() && !is_separator(line.front())) return std::nullopt;
  return value;
}

std::optional<Rating> rating_of(std::string_view line) {
  const auto row = take_number<uint32_t>(line);
  const auto column = row ? take_number<uint32_t>(line) : std::nullopt;
  const auto value = column ? take_number<float>(line) : std::nullopt;
  if (!value || !std::isfinite(*value) || *row > kMaxIndex || *column > kMaxIndex) return std::nullopt;
  return Rating{*row, *column, *value};
}

// A first line that begins with a number is no heading, nor is one that begins with three numbers of any
// kind.
bool begins_with_number(std::string_view line) {
  const size_t first = line.find_first_not_of(", \t;:\r");
  if (first == std::string_view::npos) return false;
  if (std::isdigit(static_cast<unsigned char>(line[first])) != 0) return true;
  return take_number<double>(line) && take_number<double>(line) && take_number<double>(line);
}

// Refuses a number of rows or columns that is large for the entries of a file.
void check_extent(const std::string& path, const char* what, int64_t extent, int64_t entries) {
  const int64_t most = kFreeRows + kRowsPerEntry * entries;
  if (extent > most)
    throw DataError(
        fmt::format("{}: the {} number {} is too large for a file of {} ratings; the largest is {}, because "
                    "every number takes memory: renumber from 0 without gaps",
                    path, what, extent - 1, entries, most - 1));
}

class RatingFile final : public RatingSource {
 public:
  explicit RatingFile(const std::string& path) : path_(path) {
    std::error_code error;
    const auto status = std::filesystem::status(path, error);
    if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status))
      throw DataError(fmt::format(
          "{}: is no regular file; ratings are read several times, so write them to a file first", path));
    uint32_t row = 0, column = 0;
    double sum = 0;
    const Pass pass = read([&](std::span<const Rating> piece) {
      for (const Rating& r : piece) {
        row = std::max(row, r.row), column = std::max(column, r.column);
        sum += r.value;
      }
    });
    count_ = pass.count, hash_ = pass.hash;
    if (count_ == 0) throw DataError(fmt::format("{}: no ratings; a line is \"row column value\"", path));
    rows_ = int64_t{row} + 1, columns_ = int64_t{column} + 1;
    check_extent(path, "row", rows_, count_);
    check_extent(path, "column", columns_, count_);
    mean_ = sum / static_cast<double>(count_);
  }
  int64_t rows() const override { return rows_; }
  int64_t columns() const override { return columns_; }
  int64_t count() const override { return count_; }
  double mean() const override { return mean_; }

  void visit(const Take& take) const override {
    const Pass pass = read([&](std::span<const Rating> piece) {
      for (const Rating& r : piece) {
        if (r.row >= rows_ || r.column >= columns_) refuse_change();
      }
      take(piece);
    });
    if (pass.count != count_ || pass.hash != hash_) refuse_change();
  }

 private:
  // What one reading of the file has found.
  struct Pass {
    int64_t count = 0;
    uint64_t hash = 0;  // of all entries in their order
  };

  Pass read(const Take& take) const {
    std::ifstream file(path_);
    if (!file) throw unopened_file(path_);
    Pass pass;
    Pieces pieces(take);
    std::string line;
    for (int64_t number = 1; std::getline(file, line); ++number) {
      if (number == 1 && line.starts_with(kByteOrderMark)) line.erase(0, kByteOrderMark.size());
      if (line.empty() || line == "\r") continue;
      const auto rating = rating_of(line);
      if (rating) {
        pieces.add(*rating);
        ++pass.count;
        pass.hash = mix64(key_of(rating->row, rating->column, std::bit_cast<uint32_t>(rating->value)) +
                          pass.hash + kGolden);
      } else if (number > 1 || begins_with_number(line)) {
        throw DataError(
            fmt::format("{}: line {}: \"{}\" is not \"row column value\" with numbers from 0 to {}", path_,
                        number, line.substr(0, 60), kMaxIndex));
      }
    }
    if (file.bad()) throw DataError(fmt::format("{}: cannot be read to its end", path_));
    pieces.flush();
    return pass;
  }
  [[noreturn]] void refuse_change() const {
    throw DataError(fmt::format(
        "{}: the file changed while it was read; start again when no program writes to it", path_));
  }

  std::string path_;
  int64_t rows_ = 0, columns_ = 0, count_ = 0;
  uint64_t hash_ = 0;
  double mean_ = 0;
};

class Generated final : public RatingSource {
 public:
  explicit Generated(const GeneratedRatings& spec) : spec_(spec) {
    double sum = 0;
    visit([&](std::span<const Rating> piece) {
      for (const Rating& r : piece) sum += r.value;
    });
    mean_ = sum / static_cast<double>(spec.count);
  }
  int64_t rows() const override { return spec_.rows; }
  int64_t columns() const override { return spec_.columns; }
  int64_t count() const override { return spec_.count; }
  double mean() const override { return mean_; }

  void visit(const Take& take) const override {
    Pieces pieces(take);
    for (int64_t i = 0; i < spec_.count; ++i) pieces.add(entry(static_cast<uint64_t>(i)));
    pieces.flush();
  }

 private:
  Rating entry(uint64_t i) const {
    const uint64_t bits = key_of(spec_.seed, i, 1);
    Rating rating;
    rating.row = static_cast<uint32_t>((bits >> 32) * static_cast<uint64_t>(spec_.rows) >> 32);
    rating.column = static_cast<uint32_t>((bits & 0xffffffff) * static_cast<uint64_t>(spec_.columns) >> 32);
    // The hidden factors are uniform in [0, 2)·√(3/k). The mean of the product of k pairs is 3.
    double product = 0;
    for (int64_t f = 0; f < spec_.factors; ++f) {
      const uint64_t key = spec_.seed + static_cast<uint64_t>(f) * 2;
      product += 4 * uniform_of(key_of(key, rating.row, 2)) * uniform_of(key_of(key, rating.column, 3));
    }
    const uint64_t noise = key_of(spec_.seed, i, 4);  // uniform, with the standard deviation of the spec
    rating.value = static_cast<float>(product * 3 / static_cast<double>(spec_.factors) +
                                      spec_.noise * (uniform_of(noise) - 0.5) * std::sqrt(12.0));
    return rating;
  }

  const GeneratedRatings spec_;
  double mean_ = 0;
};

}  // namespace

std::unique_ptr<RatingSource> open_ratings(const std::string& path) {
  return std::make_unique<RatingFile>(path);
}

std::unique_ptr<RatingSource> make_ratings(const GeneratedRatings& spec) {
  if (spec.rows < 1 || spec.columns < 1 || spec.count < 1 || spec.factors < 1 || spec.rows > kMaxIndex ||
      spec.columns > kMaxIndex) {
    throw ConfigError(
        "generated ratings",
        fmt::format("{} x {} with {} entries and {} factors cannot be made; each number must be at least 1, "
                    "and rows and columns below 2^31",
                    spec.rows, spec.columns, spec.count, spec.factors));
  }
  return std::make_unique<Generated>(spec);
}

bool is_test_rating(const Rating& rating, double share, uint64_t seed) {
  return share > 0 && uniform_of(key_of(seed ^ 0x7e57, rating.row, rating.column)) < share;
}

}  // namespace starling
