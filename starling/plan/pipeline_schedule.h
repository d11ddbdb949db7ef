// A pipeline schedule as data: for each rank, the ordered list of its actions in one step.
//
// A model is cut into stages = ranks · chunks consecutive parts. Rank r holds the stages chunk · ranks + r,
// one per chunk. Stage s + 1 therefore always lies on the next rank (in a circle). The batch of a step is cut
// into micro-batches. For each stage s of a rank and each micro-batch, the actions are
//
//   RA  receive the activation of stage s − 1                   (not on stage 0)
//   F   forward
//   SA  send the activation to stage s + 1                      (not on the last stage)
//   RG  receive the gradient of that activation from s + 1      (not on the last stage)
//   B   backward
//   SG  send the gradient of the stage's input to stage s − 1   (not on stage 0)
//
// With one rank, neighboring stages share memory, and nothing is sent. The schedule executor
// (parallel/pipeline/schedule_executor.h) runs any schedule that the checker (plan/schedule_check.h) accepts.
// The simulator (plan/schedule_simulation.h) computes its duration, and plan/schedule_text.h prints and
// parses it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace starling {

// The kind of an action.
enum class ActionKind : uint8_t {
  kForward,
  kBackward,
  kSendActivation,
  kRecvActivation,
  kSendGradient,
  kRecvGradient
};

// Returns the name for messages: "forward", "send-activation", ….
std::string_view name_of(ActionKind kind);
// Returns the code in files: "F", "B", "SA", "RA", "SG", "RG".
std::string_view code_of(ActionKind kind);

// One entry of a schedule.
struct Action {
  ActionKind kind = ActionKind::kForward;
  int micro_batch = 0;  // from 0
  int chunk = 0;        // from 0: which of the rank's stages
  int line = 0;         // in the file that the action was read from, from 1; 0: built in
  int column = 0;       // of the action in that line, from 1

  // Compares what the actions do, not where they were written.
  friend bool operator==(const Action& a, const Action& b) {
    return a.kind == b.kind && a.micro_batch == b.micro_batch && a.chunk == b.chunk;
  }
};

// Returns "forward of micro-batch 3" or, if there are several chunks, "forward of micro-batch 3, chunk 1".
std::string describe(const Action& action, int chunks);

// The actions of all ranks in one step.
struct Schedule {
  std::string name;    // such as "1f1b", or the name in a file
  std::string source;  // the file, for messages; empty for a built-in schedule
  int ranks = 1;
  int chunks = 1;  // stages per rank
  int micro_batches = 1;
  std::vector<std::vector<Action>> actions;  // by rank

  // The number of stages of the model.
  int stages() const { return ranks * chunks; }
  // The stage that `chunk` of `rank` holds.
  int stage_of(int rank, int chunk) const { return chunk * ranks + rank; }
  // The rank that holds `stage`.
  int rank_of(int stage) const { return stage % ranks; }
  // The chunk of rank_of(stage) that holds `stage`.
  int chunk_of(int stage) const { return stage / ranks; }
};

// Returns the names that make_schedule knows.
const std::vector<std::string>& schedule_names();

// Makes a built-in schedule:
//
//   "naive"        One stage works at a time. Each micro-batch goes forward and backward before the next one.
//   "gpipe"        All forwards, then all backwards (Huang et al., GPipe, arXiv 1811.06965).
//   "1f1b"         ranks − rank − 1 forwards, then one forward and one backward alternately, then all
//                  remaining backwards (Narayanan et al., PipeDream, SOSP 2019; synchronous form of
//                  arXiv 2104.04473, figure 4).
//   "interleaved"  1f1b over `chunks` stages per rank, with micro-batches in groups of `ranks` (arXiv
//                  2104.04473, section 2.2). If `ranks` does not divide the number of micro-batches, the
//                  groups are larger and nearly equal.
//
// ranks, chunks and micro_batches are at least 1. Only interleaved accepts more than one chunk; with one
// chunk it equals 1f1b. Errors: ConfigError (--schedule, --mesh, --chunks, --micro-batches) for an unknown
// name or for invalid numbers.
Schedule make_schedule(std::string_view name, int ranks, int chunks, int micro_batches);

// Returns the share of a step in which a rank is idle if all stages cost the same and messages cost nothing.
// p is the number of ranks, m of micro-batches and v of chunks:
//
//   naive        (p − 1)/p
//   gpipe, 1f1b  (p − 1)/(m + p − 1)
//   interleaved  (p − 1)/(v m + p − 1), exact if p divides m
//
// Returns −1 for names that make_schedule does not know. Simulate schedules from files instead.
double planned_bubble(std::string_view name, int ranks, int chunks, int micro_batches);

}  // namespace starling
