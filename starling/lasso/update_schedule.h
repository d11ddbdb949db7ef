// Which weights a round of a sparse regression updates. A schedule is a function of the seed, the round and
// what the rounds before gave, so every rank computes it and no schedule is sent.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "starling/lasso/correlations.h"
#include "starling/lasso/priority_tree.h"

namespace starling {

// How the features of a round are chosen.
enum class ScheduleKind {
  kStrads,     // by priority, with the dependency check; all at once
  kUnchecked,  // by priority, without the check; all at once
  kShotgun,    // uniformly, without the check; all at once (Bradley et al., ICML 2011)
  kRandom,     // uniformly, one after another
  kCyclic,     // in the order of the features, one after another
  kActiveSet,  // all features once, then those with nonzero weights until they settle, one after another
};
// Returns the word of a schedule, as `--schedule` has it.
const char* word_of(ScheduleKind kind);
// Returns the schedule of a word. Errors: ConfigError that lists the words.
ScheduleKind parse_schedule(std::string_view word);
// Returns whether the updates of a round are made one after another, each with the residual of the update
// before.
bool is_sequential(ScheduleKind kind);

// Draws `count` features by priority, which differ from each other. There are fewer if too few features have
// progress. The draws are a function of (seed, round) and the priorities, which are unchanged afterwards.
std::vector<int64_t> draw_by_priority(int64_t count, uint64_t seed, uint64_t round, PriorityTree& priorities);
// Draws `count` features uniformly. With `distinct`, the features differ.
std::vector<int64_t> draw_uniform(int64_t features, int64_t count, uint64_t seed, uint64_t round,
                                  bool distinct);

// A weight that a round may change.
struct ProposedChange {
  int64_t feature = 0;
  double change = 0;  // δβ, as computed from the residual before the round
};
// The dependency check. Goes through the changes in decreasing order of |δβ|, and takes a change if the
// correlations of its feature with the features of all changes taken before are below `limit`. Changes of 0
// disturb nothing and are left out. Returns the changes taken. Collective. Errors: CommError.
std::vector<ProposedChange> independent_changes(std::vector<ProposedChange> changes, double limit,
                                                Correlations& correlations);

}  // namespace starling
