#include "starling/topics/topic_match.h"

#include <cmath>
#include <limits>
#include <numeric>

namespace starling {
namespace {

constexpr int64_t kWordsAtOnce = 1000;

}  // namespace

std::vector<int32_t> best_assignment(std::span<const double> values, int32_t n) {
  // Shortest augmenting paths with potentials, on costs −values. Rows and columns count from 1, and 0 is
  // none.
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

std::vector<double> match_topics(std::span<const float> truth, int32_t words, int32_t topics,
                                 const ReadTopics& read) {
  const auto count = static_cast<size_t>(topics);
  std::vector<double> products(count * count, 0), true_norm(count, 0), norm(count, 0), row(count);
  TopicRows found;
  for (int64_t begin = 0; begin < words; begin += kWordsAtOnce) {
    std::vector<int64_t> some(static_cast<size_t>(std::min<int64_t>(kWordsAtOnce, words - begin)));
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
  for (size_t a = 0; a < count; ++a) {
    for (size_t b = 0; b < count; ++b) products[a * count + b] /= std::sqrt(true_norm[a] * norm[b]);
  }
  const std::vector<int32_t> assigned = best_assignment(products, topics);
  std::vector<double> cosines(count);
  for (size_t a = 0; a < count; ++a) cosines[a] = products[a * count + static_cast<size_t>(assigned[a])];
  return cosines;
}

}  // namespace starling
