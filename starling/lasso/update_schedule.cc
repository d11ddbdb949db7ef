#include "starling/lasso/update_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <unordered_set>
#include <utility>

#include "starling/base/error.h"
#include "starling/base/keyed_random.h"

namespace starling {
namespace {

constexpr std::array<std::pair<ScheduleKind, const char*>, 6> kWords = {
    {{ScheduleKind::kStrads, "strads"},
     {ScheduleKind::kUnchecked, "unchecked"},
     {ScheduleKind::kShotgun, "shotgun"},
     {ScheduleKind::kRandom, "random"},
     {ScheduleKind::kCyclic, "cyclic"},
     {ScheduleKind::kActiveSet, "active-set"}}};

constexpr uint64_t kUniformDraw = 0x5407, kPriorityDraw = 0x57ad5;
// Draws that hit features of the round in a row, before a round is content with fewer candidates.
constexpr int kMostRepeats = 64;

}  // namespace

const char* word_of(ScheduleKind kind) {
  for (const auto& [other, word] : kWords)
    if (other == kind) return word;
  return "";
}

ScheduleKind parse_schedule(std::string_view word) {
  for (const auto& [kind, other] : kWords)
    if (other == word) return kind;
  throw ConfigError("--schedule", fmt::format("\"{}\" is no schedule; write strads, unchecked, shotgun, "
                                              "random, cyclic or active-set",
                                              word));
}

bool is_sequential(ScheduleKind kind) {
  return kind == ScheduleKind::kRandom || kind == ScheduleKind::kCyclic || kind == ScheduleKind::kActiveSet;
}

std::vector<int64_t> draw_by_priority(int64_t count, uint64_t seed, uint64_t round,
                                      PriorityTree& priorities) {
  const uint64_t key = key_of(seed ^ kPriorityDraw, round, 0);
  std::vector<int64_t> drawn;
  std::vector<double> progress;  // of the drawn features, which have none in the tree for the time being
  std::unordered_set<int64_t> seen;
  int repeats = 0;
  for (uint64_t draw = 0; std::ssize(drawn) < count && repeats < kMostRepeats; ++draw) {
    const uint64_t bits = key_of(key, draw, 0);
    const auto feature = priorities.draw(uniform_of(bits), uniform_of(mix64(bits + kGolden)));
    if (!feature || !seen.insert(*feature).second) {
      ++repeats;
      continue;
    }
    repeats = 0;
    drawn.push_back(*feature);
    progress.push_back(priorities.progress(*feature));
    priorities.set(*feature, 0);
  }
  for (size_t i = 0; i < drawn.size(); ++i) priorities.set(drawn[i], progress[i]);
  return drawn;
}

std::vector<int64_t> draw_uniform(int64_t features, int64_t count, uint64_t seed, uint64_t round,
                                  bool distinct) {
  std::vector<int64_t> drawn;
  std::unordered_set<int64_t> seen;
  if (distinct) count = std::min(count, features);
  const uint64_t key = key_of(seed ^ kUniformDraw, round, 0);
  for (uint64_t draw = 0; std::ssize(drawn) < count; ++draw) {
    const auto feature = static_cast<int64_t>(key_of(key, draw, 0) % static_cast<uint64_t>(features));
    if (!distinct || seen.insert(feature).second) drawn.push_back(feature);
  }
  return drawn;
}

std::vector<ProposedChange> independent_changes(std::vector<ProposedChange> changes, double limit,
                                                Correlations& correlations) {
  std::erase_if(changes, [](const ProposedChange& change) { return change.change == 0; });
  std::stable_sort(changes.begin(), changes.end(), [](const ProposedChange& a, const ProposedChange& b) {
    return std::abs(a.change) > std::abs(b.change);
  });
  std::vector<int64_t> features;
  for (const ProposedChange& change : changes) features.push_back(change.feature);
  correlations.prepare(features);
  std::vector<ProposedChange> taken;
  for (const ProposedChange& change : changes) {
    const auto independent = [&](const ProposedChange& other) {
      return correlations.at(change.feature, other.feature) < limit;
    };
    if (std::all_of(taken.begin(), taken.end(), independent)) taken.push_back(change);
  }
  return taken;
}

}  // namespace starling
