// A pipeline schedule as data: for each rank the ordered list of what it does in one step.
//
// A model is cut into stages = ranks · chunks consecutive parts; rank r holds the stages chunk · ranks + r, one a chunk, so
// that stage s + 1 always lies on the next rank (in a circle). A step's batch is cut into micro-batches. For stage s of a
// rank and each micro-batch
//
//   RA  receive the activation that stage s − 1 has made        (not on stage 0)
//   F   forward
//   SA  send the activation to stage s + 1                      (not on the last stage)
//   RG  receive the gradient of that activation from s + 1      (not on the last stage)
//   B   backward
//   SG  send the gradient of the stage's input to stage s − 1   (not on stage 0)
//
// With one rank neighbouring stages share its memory: nothing is sent. The executor (parallel/pipeline/) runs any table that
// the checker (schedule_check.h) accepts; the simulator (schedule_simulation.h) prices it; schedule_text.h writes it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace starling {

enum class ActionKind : uint8_t {
  kForward,
  kBackward,
  kSendActivation,
  kRecvActivation,
  kSendGradient,
  kRecvGradient
};

// "forward", "send-activation" …, for messages.
std::string_view name_of(ActionKind kind);
// "F", "B", "SA", "RA", "SG", "RG": in files.
std::string_view code_of(ActionKind kind);

struct Action {
  ActionKind kind = ActionKind::kForward;
  int micro_batch = 0;  // from 0
  int chunk = 0;        // from 0: which of the rank's stages
  int line = 0;         // in the file that it was read from, from 1; 0: built
  int column = 0;

  // Whether they do the same, wherever they were written.
  friend bool operator==(const Action& a, const Action& b) {
    return a.kind == b.kind && a.micro_batch == b.micro_batch && a.chunk == b.chunk;
  }
};

// "forward of micro-batch 3" or, with several chunks, "forward of micro-batch 3, chunk 1".
std::string describe(const Action& action, int chunks);

struct Schedule {
  std::string name;    // "1f1b", or what a file says
  std::string source;  // the file, for messages; empty: built
  int ranks = 1;
  int chunks = 1;  // stages a rank
  int micro_batches = 1;
  std::vector<std::vector<Action>> actions;  // by rank

  int stages() const { return ranks * chunks; }
  int stage_of(int rank, int chunk) const { return chunk * ranks + rank; }
  int rank_of(int stage) const { return stage % ranks; }
  int chunk_of(int stage) const { return stage / ranks; }
};

// The names that make_schedule knows.
const std::vector<std::string>& schedule_names();

// name: "naive"        one stage works at a time: each micro-batch goes forward and back before the next begins
//       "gpipe"        all forwards, then all backwards (Huang et al., GPipe, arXiv 1811.06965)
//       "1f1b"         ranks − rank − 1 forwards, then one forward one backward in turn, then the remaining backwards
//                      (Narayanan et al., PipeDream, SOSP 2019; synchronous form as in arXiv 2104.04473, figure 4)
//       "interleaved"  1f1b over `chunks` stages a rank, micro-batches in groups of `ranks` (arXiv 2104.04473, section 2.2);
//                      a number that `ranks` does not divide is cut into near-equal, larger groups
// ranks, chunks and micro_batches are at least 1; only interleaved takes more than one chunk, and with one it is 1f1b.
// Errors: ConfigError (--schedule, --micro-batches) for an unknown name (suggests the near one) or numbers that do not fit.
Schedule make_schedule(std::string_view name, int ranks, int chunks, int micro_batches);

// The share of the step in which a rank is idle, where all stages cost the same and messages cost nothing:
//   naive (p − 1)/p;  gpipe, 1f1b (p − 1)/(m + p − 1);  interleaved (p − 1)/(v m + p − 1), exact if p divides m.
// −1 for names that make_schedule does not know (tables from files: simulate them).
double planned_bubble(std::string_view name, int ranks, int chunks, int micro_batches);

}  // namespace starling
