// What a run tells the outside: typed events. Sinks (sink.h) write them to a terminal, a JSONL file or
// SQLite; nothing that trains knows which.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

namespace starling {

// The run begins: how it was configured and what was measured or chosen before the first step.
struct RunStarted {
  std::string run_dir;
  std::string model;
  std::string data;
  int64_t ranks = 1;
  int64_t threads = 1;
  int64_t global_batch = 0;
  int64_t total_steps = 0;
  int64_t first_step = 0;  // > 0 after a resume
  int64_t params = 0;
  std::map<std::string, std::string> choices;  // e.g. {"gemm", "mkl"}, {"layout", "channels-last"}
};

// One optimizer step, seen by rank 0. Times are seconds of this step on the rank that reports.
struct StepDone {
  int64_t step = 0;  // 1-based: the number of updates done
  double epoch = 0;
  double loss = 0;  // mean over the global batch
  double lr = 0;
  double samples_per_s = 0;  // over all ranks, from a sliding median of step times
  double step_s = 0;
  double compute_s = 0;
  double exposed_comm_s = 0;  // waiting for peers or moving bytes while no computation went on
  double data_wait_s = 0;
  int slowest_rank = -1;  // the rank that the others waited for, -1 when alone
  double eta_s = 0;
};

struct EvalDone {
  int64_t step = 0;
  double loss = 0;
  double accuracy = -1;  // share of 1; -1 where it has no meaning (text)
  int64_t samples = 0;
};

struct CheckpointDone {
  int64_t step = 0;
  std::string path;
  double seconds = 0;
  std::string error;  // not empty: it could not be written; training goes on and the previous one stays
};

enum class Severity { kDebug, kInfo, kWarning, kError };

struct Message {
  Severity severity = Severity::kInfo;
  int rank = -1;
  std::string text;
};

// Ranks died and the others go on. Said by the lowest rank that is left.
struct RanksLost {
  int64_t step = 0;        // the last whole step before
  std::vector<int> ranks;  // as the run numbered them when it began
  int64_t left = 0;
  double seconds = 0;  // until the others trained again
};

// The closing summary; printed as the last JSON object, {"event":"result", …}.
struct RunResult {
  std::string model;
  int64_t steps = 0;
  int64_t ranks = 1;
  int64_t params = 0;
  double samples_per_s = 0;  // over all ranks, from the median step after the first three
  double train_loss = 0;     // mean of the last up to 20 steps
  double test_loss = -1;
  double test_accuracy = -1;  // share of 1; -1: no test data or no meaning
  double wall_s = 0;
  double compute_s = 0;
  double exposed_comm_s = 0;
  double data_wait_s = 0;
  uint64_t bytes_sent = 0;          // by all ranks
  std::vector<double> peak_rss_mb;  // one a rank
  bool interrupted = false;         // ended early by SIGTERM or Ctrl-C, state saved
  std::string exchange;             // how the replicas agreed
  std::map<std::string, double>
      strategy;                 // what the strategy says of itself: its fingerprint (docs/exchanges.md)
  std::vector<int> lost_ranks;  // that died while the others went on
  double recovery_s = 0;        // in which nobody trained for that
};

using Event = std::variant<RunStarted, StepDone, EvalDone, CheckpointDone, Message, RunResult, RanksLost>;

// "rank 2 was lost at step 120; 3 ranks go on; 0.8 s"
std::string text_of(const RanksLost& lost);

}  // namespace starling
