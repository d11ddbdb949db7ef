// ShareMeasurement divides the samples of a step by the measured speed of the ranks (data.share = "auto").
//
// The ranks measure their own computation in two rounds of steps. After each round they agree on new shares.
// The time of a step also has a part that does not depend on the number of samples. The second round
// therefore corrects the first one. The shares then stay as they are.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "starling/comm/group.h"
#include "starling/run/choice/choices.h"
#include "starling/spec/run_spec.h"
#include "starling/telemetry/event.h"

namespace starling {

// The measurement of one rank. Not thread-safe.
class ShareMeasurement {
 public:
  static constexpr int kSkipped = 3;    // first steps of a round, which do not count: caches are cold
  static constexpr int kMeasured = 10;  // steps of a round that count
  static constexpr int kRounds = 2;
  static constexpr int kSteps = kRounds * (kSkipped + kMeasured);  // of the whole measurement
  // Ranks whose speeds differ by less than this factor keep equal shares.
  static constexpr double kEqual = 1.1;

  // The ranks of `group` begin with `shares` of a step's samples, by rank of the group. Every rank keeps at
  // least `least` samples. The group must outlive this object.
  ShareMeasurement(std::vector<int64_t> shares, int64_t least, Group& group);

  // Adds the seconds in which this rank has computed in a step. Returns true if the shares may have changed.
  // Collective in the last step of a round. Call it once in each step until done().
  bool add(double compute_s);
  // True after the last round.
  bool done() const { return rounds_ == kRounds; }
  // The samples of a step by rank of the group. They are equal on all ranks and add up to the global batch.
  const std::vector<int64_t>& shares() const { return shares_; }
  // Says that the measurement begins.
  static Message begins();
  // Says what the ranks have measured in the last round, and what they do now.
  Message message() const;

 private:
  std::vector<int64_t> shares_;
  std::vector<double> speeds_;  // in samples/s, by rank, of the last round
  int64_t least_;
  Group& group_;
  int steps_ = 0;  // of the present round
  int rounds_ = 0;
  std::vector<double> seconds_;
};

// Returns the new shares of ranks that have computed `shares` samples in `seconds` seconds each. Every rank
// gets at least `least` samples. Ranks whose speeds differ by less than ShareMeasurement::kEqual get equal
// shares.
std::vector<int64_t> shares_by_speed(const std::vector<int64_t>& shares, const std::vector<double>& seconds,
                                     int64_t least);

// Returns true if the ranks of `group` measure their shares: data.share is "auto", and `choices` does not
// hold the shares of an earlier start.
bool measures_shares(const RunSpec& spec, const Choices& choices, const Group& group);

// Returns the parts of all ranks by which a run begins. These are the parts of the list in data.share. Under
// "auto", they are those that `choices` holds of an earlier start. Empty if there are none, or if those of
// the earlier start are for another number of ranks or lack a lost rank. Errors: ConfigError if the list has
// another number of parts than the run has ranks.
std::vector<double> known_parts(const RunSpec& spec, const Choices& choices);

// Takes the shares of rank 0 as choices["share"] and `parts`, under data.share = "auto". A loss may have come
// between the agreements of two ranks. Collective.
void agree_on_shares(const RunSpec& spec, Group& group, Choices& choices, std::vector<double>& parts);

// Returns the parts of the ranks in `remaining`, which ascend. Empty if `parts` is empty.
std::vector<double> parts_of_remaining(const std::vector<double>& parts, const std::vector<int>& remaining);

// Returns the samples of each remaining rank in a step. If `parts` is empty, the numbers of two ranks differ
// by at most one.
std::vector<int64_t> shares_of_remaining(const RunSpec& spec, const std::vector<double>& parts,
                                         const std::vector<int>& remaining);

// Returns the samples of all ranks of the run, of which `shares` holds those of the remaining ones. A rank
// that is no member has 0.
std::vector<int64_t> shares_of_ranks(const RunSpec& spec, const std::vector<int64_t>& shares,
                                     const std::vector<int>& remaining);

// Returns the samples of all ranks of the run in a step. Empty if `parts` is empty: they are equal then.
std::vector<int64_t> shares_of_run(const RunSpec& spec, const std::vector<double>& parts,
                                   const std::vector<int>& remaining);

// Writes shares as the text of a choice: "43,21".
std::string shares_text(const std::vector<int64_t>& shares);

}  // namespace starling
