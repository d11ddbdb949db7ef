#include "starling/topics/topic_match.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "starling/base/error.h"

namespace starling {
namespace {

constexpr int64_t kMostAtOnce = 1000;  // words

}  // namespace

std::vector<int32_t> best_assignment(std::span<const double> values, int32_t n) {
  // Shortest augmenting paths with potentials, on costs −values. Rows and columns count from 1, and 0 is
  // none.
  for (size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i]))
      throw Error(ErrorCode::kNumeric,
                  fmt::format("the cosine of true topic {} and topic {} is {}: topics without a probability "
                              "above 0 cannot be compared",
                              i / static_cast<size_t>(n) + 1, i % static_cast<size_t>(n) + 1, values[i]));
  }
  const auto size = static_cast<size_t>(n) + 1;
  std::vector<double> row_price(size, 0), column_price(size, 0);
  std::vector<size_t> row_of(size, 0), from(size, 0);
  for (size_t row = 1; row < size; ++row) {
    row_of[0] = row;
    size_t column = 0;
    std::vector<double> least(size, std::numeric_limits<double>::infinity());
    std::vector<char> done(size, 0);
    do {
      done[column] = 1;
      const size_t i = row_of[column];
      double step = std::numeric_limits<double>::infinity();
      size_t next = 0;
      for (size_t j = 1; j < size; ++j) {
        if (done[j] != 0) continue;
        const double cost = -values[(i - 1) * (size - 1) + j - 1] - row_price[i] - column_price[j];
        if (cost < least[j]) least[j] = cost, from[j] = column;
        if (least[j] < step) step = least[j], next = j;
      }
      for (size_t j = 0; j < size; ++j) {
        if (done[j] != 0) {
          row_price[row_of[j]] += step;
          column_price[j] -= step;
        } else {
          least[j] -= step;
        }
      }
      column = next;
    } while (row_of[column] != 0);
    for (; column != 0; column = from[column]) row_of[column] = row_of[from[column]];
  }
  std::vector<int32_t> assigned(static_cast<size_t>(n));
  for (size_t j = 1; j < size; ++j) assigned[row_of[j] - 1] = static_cast<int32_t>(j - 1);
  return assigned;
}

std::vector<double> match_topics(Group& group, std::span<const float> truth, int32_t words, int32_t topics,
                                 const ReadTopics& read, size_t words_at_once) {
  const auto count = static_cast<size_t>(topics);
  std::vector<double> sums(count * (count + 2), 0), row(count);
  const std::span<double> products(sums.data(), count * count);
  const std::span<double> true_norm(products.data() + products.size(), count);
  const std::span<double> norm(true_norm.data() + count, count);
  TopicRows found;
  const int64_t step = std::clamp<int64_t>(static_cast<int64_t>(words_at_once), 1, kMostAtOnce);
  const int64_t first = int64_t{words} * group.rank() / group.size();
  const int64_t end = int64_t{words} * (group.rank() + 1) / group.size();
  for (int64_t begin = first; begin < end; begin += step) {
    std::vector<int64_t> some(static_cast<size_t>(std::min(step, end - begin)));
    std::iota(some.begin(), some.end(), begin);
    read(some, found);
    for (size_t i = 0; i < some.size(); ++i) {
      row.assign(found.common.begin(), found.common.end());
      const BasicRow<float> own = found.rows.row(i);
      for (size_t j = 0; j < own.index.size(); ++j) row[static_cast<size_t>(own.index[j])] += own.value[j];
      const float* known = truth.data() + static_cast<size_t>(some[i]) * count;
      for (size_t a = 0; a < count; ++a) {
        norm[a] += row[a] * row[a];
        true_norm[a] += static_cast<double>(known[a]) * known[a];
        if (known[a] == 0) continue;
        for (size_t b = 0; b < count; ++b) products[a * count + b] += known[a] * row[b];
      }
    }
  }
  if (group.size() > 1) all_reduce(group, sums.data(), sums.size(), DataType::kFp64, ReduceOp::kSum);
  for (size_t a = 0; a < count; ++a) {
    for (size_t b = 0; b < count; ++b) products[a * count + b] /= std::sqrt(true_norm[a] * norm[b]);
  }
  const std::vector<int32_t> assigned = best_assignment(products, topics);
  std::vector<double> cosines(count);
  for (size_t a = 0; a < count; ++a) cosines[a] = products[a * count + static_cast<size_t>(assigned[a])];
  return cosines;
}

}  // namespace starling
