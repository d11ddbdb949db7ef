// Writes the topics of `starling topics` into files.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "starling/comm/group.h"
#include "starling/topics/topic_model.h"
#include "starling/topics/topic_score.h"

namespace starling {

// Writes φ as phi.npy, with a row for each word, and topics.txt, with the likeliest words of each topic, into
// a folder that all ranks can write into. Each rank writes its part of the rows into phi.npy.part, which gets
// its name when it is whole. vocabulary: the words, or empty, on rank 0. words_at_once: whose rows a rank
// reads at a time. Collective. Errors: DataError if a file cannot be written; those of `read`.
void export_topics(Group& group, const std::string& folder, const std::vector<std::string>& vocabulary,
                   const TopicModel& model, const ReadTopics& read, size_t words_at_once);

}  // namespace starling
