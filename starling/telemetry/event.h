// The events that a run emits. Sinks (sink.h) write them to a terminal, a JSONL file, SQLite or TensorBoard.
// Code that trains does not know the sinks.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <variant>
#include <vector>

namespace starling {

// The run starts or goes on. The event holds its main settings and the choices that were made before the
// first step.
struct RunStarted {
  std::string run_dir;          // the run folder; empty if there is none
  std::string model;            // the name of the network
  std::string data;             // the name of the training data
  int64_t ranks = 1;            // that train, without servers
  int64_t threads = 1;          // of each rank
  int64_t local_processes = 1;  // of this run on the host of rank 0: ranks and servers
  int64_t local_cores = 0;   // that those processes may use together, hardware threads included; 0: unknown
  int64_t global_batch = 0;  // samples of a step, over all ranks
  int64_t total_steps = 0;   // at which the run ends, counted from its first start
  int64_t first_step = 0;    // > 0 after a resume
  int64_t params = 0;        // parameters of the model
  std::map<std::string, std::string> choices;  // for example {"gemm", "mkl"}, {"layout", "channels-last"}
  std::vector<std::string> hosts = {};         // the name of the host of each rank
  double startup_s = 0;  // from the call that trains to this event, on the leading rank; 0: unknown
};

// One optimizer step, as the leading rank sees it. Times are in seconds and refer to this step on the
// reporting rank.
struct StepDone {
  int64_t step = 0;           // number of updates so far; the first step is 1
  double epoch = 0;           // passes over the training data so far
  double loss = 0;            // mean over the global batch
  double lr = 0;              // the learning rate of the step
  double samples_per_s = 0;   // over all ranks, from a moving median of step times
  double step_s = 0;          // of the whole step
  double compute_s = 0;       // of the forward and backward pass and the update
  double exposed_comm_s = 0;  // waiting for peers or transferring data while nothing is computed
  double data_wait_s = 0;     // waiting for the batch
  int slowest_rank = -1;      // the rank for which the other ranks waited; -1 for a single rank
  double eta_s = 0;           // until the last step
  // The time by which the checkpoint after the step before delayed this step. 0 if there was none.
  double checkpoint_s = 0;
};

// The model was evaluated on the test data.
struct EvalDone {
  int64_t step = 0;                            // the step after which the model was evaluated
  double loss = 0;                             // mean over the test data
  double accuracy = -1;                        // between 0 and 1; -1 if accuracy is not defined (text)
  int64_t samples = 0;                         // of the test data
  std::map<std::string, double> metrics = {};  // the program's own metrics, by name, without the accuracy
  double loss_weight = 0;  // what the loss is a mean over: the samples, or the weight of a weighted loss
  std::vector<double> metric_weights = {};  // what each metric is a mean over, in the order of FitOptions
  double seconds = 0;                       // that the evaluation took on the leading rank
};

// How far an evaluation is. It is shown on a terminal and kept nowhere.
struct EvalProgress {
  int64_t step = 0;     // the step after which the model is evaluated
  int64_t samples = 0;  // that the reporting rank has evaluated
  int64_t of = 0;       // the share of the test samples that this rank evaluates
};

// A checkpoint was written, or could not be written.
struct CheckpointDone {
  int64_t step = 0;    // the step whose state it holds
  std::string path;    // its folder
  double seconds = 0;  // that writing took
  std::string
      error;  // not empty: the checkpoint was not written; training continues and the previous one is kept
};

// How much a message matters.
enum class Severity { kDebug, kInfo, kWarning, kError };

// A message for the person who started the run.
struct Message {
  Severity severity = Severity::kInfo;  // how much it matters
  int rank = -1;                        // that it is about; -1: the whole run
  std::string text;                     // one sentence or more
};

// Ranks were lost and the remaining ranks continue. The lowest remaining rank emits the event.
struct RanksLost {
  int64_t step = 0;        // the last complete step before the loss
  std::vector<int> ranks;  // by their numbers at the start of the run
  int64_t left = 0;        // number of remaining ranks
  double seconds = 0;      // until the remaining ranks trained again
};

// How an interrupted run is resumed.
struct ResumeHint {
  std::string command;   // a command of a shell; empty if the state is not saved
  std::string launcher;  // the launcher that must start the command on every rank; empty if it needs none
};

// Where the time of the steps of one rank went, in seconds.
struct RankTimes {
  int64_t rank = 0;           // as the run numbered it at its start
  double compute_s = 0;       // forward and backward passes and updates
  double exposed_comm_s = 0;  // waiting for peers or transferring data while nothing is computed
  double data_wait_s = 0;     // waiting for batches
};

// The result of the run, printed as the last JSON object: {"event":"result", …}.
struct RunResult {
  std::string model;         // the name of the network
  int64_t steps = 0;         // updates so far, those of earlier starts of the run included
  int64_t first_step = 0;    // updates that earlier starts had made; equal to `steps` if nothing was trained
  int64_t ranks = 1;         // at the start of the run
  int64_t params = 0;        // parameters of the model
  double samples_per_s = 0;  // over all ranks, from the median step after the first three
  // Mean of the last 20 steps, or of all steps of this start if there are fewer. NaN if there are none.
  double train_loss = std::numeric_limits<double>::quiet_NaN();
  double test_loss = -1;      // mean over the test data; -1 without test data
  double test_accuracy = -1;  // between 0 and 1; -1 without test data or if accuracy is not defined
  std::map<std::string, double> test_metrics;  // the program's own metrics, by name, without the accuracy
  double wall_s = 0;                           // of this start, from its first step to the end
  double compute_s = 0;                        // of the leading rank, as the two below: see RankTimes
  double exposed_comm_s = 0;                   // see RankTimes
  double data_wait_s = 0;                      // see RankTimes
  uint64_t bytes_sent = 0;                     // by all ranks
  std::vector<double> peak_rss_mb;             // of each rank that is left, in the order of rank_times
  bool interrupted = false;                    // a signal or Run::request_stop() ended the run early
  int signal = 0;                              // the signal that interrupted the run, if it is known
  bool stopped = false;                        // the program's callback or SIGUSR2 ended the run early
  ResumeHint resume;                           // of an interrupted run
  std::string exchange;                        // exchange.name
  std::map<std::string, double> strategy;      // the strategy statistics
  std::vector<int> lost_ranks;                 // ranks that were lost while the remaining ranks continued
  double recovery_s = 0;                       // time without training because ranks were lost
  double evaluation_s = 0;                     // of all evaluations, on the leading rank
  double checkpoint_s = 0;                     // by which checkpoints delayed the leading rank
  // The parts of exposed_comm_s by phase, as far as the strategy knows them (parallel/strategy.h).
  std::map<std::string, double> exchange_s = {};
  std::vector<RankTimes> rank_times = {};  // of the ranks that are left
  // The samples of each rank in a step, by its number at the start of the run; 0 for a lost rank. Empty if
  // all ranks have equally many.
  std::vector<int64_t> share = {};
};

// Any of the events that a run emits and keeps.
using Event = std::variant<RunStarted, StepDone, EvalDone, CheckpointDone, Message, RunResult, RanksLost>;

// When an event happened and to which run it belongs.
struct EventStamp {
  double time = 0;     // seconds since 1970; 0: unknown
  std::string run_id;  // names one start of a run; empty: unknown
};

// Returns "rank 2 was lost at step 120; 3 ranks continue after 0.8 s".
std::string text_of(const RanksLost& lost);

}  // namespace starling
