// Compares topics with known ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "starling/topics/topic_score.h"

namespace starling {

// Returns for each row the column of a one-to-one assignment with the largest sum of values. values: n × n,
// row-major. Takes O(n³) time (Kuhn 1955; Jonker and Volgenant 1987). Errors: Error(kNumeric) if a value is
// not finite.
std::vector<int32_t> best_assignment(std::span<const double> values, int32_t n);

// Returns the cosine between each true topic and the topic that is assigned to it. truth: φ_wk at
// [w · topics + k]. The sum of the cosines of the assignment is the largest one. Each rank reads its part of
// the words, at most words_at_once at a time, and all ranks get equal cosines. Collective. Errors:
// Error(kNumeric) if the topics cannot be compared; those of `read`.
std::vector<double> match_topics(Group& group, std::span<const float> truth, int32_t words, int32_t topics,
                                 const ReadTopics& read, size_t words_at_once = 1000);

}  // namespace starling
