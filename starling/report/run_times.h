// RunTimes: where the time of a run went on the rank that leads, read back from the events of its folder
// (telemetry/to_json.h).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "starling/telemetry/event.h"

namespace starling {

// What one start of a run says about its time. A resumed run has several starts. Times are in seconds, of the
// leading rank, and of this start only.
struct StartTimes {
  RunStarted started;        // hosts and startup_s are unset in folders of earlier versions
  std::string run_id;        // empty in folders of earlier versions
  bool ended = false;        // the start reported a result, so the sums below come from it
  bool interrupted = false;  // by a signal
  int64_t steps = 0;         // that this start made
  double wall_s = 0;         // from the call that trains to the last event
  double compute_s = 0;
  double data_wait_s = 0;
  double exposed_comm_s = 0;
  double evaluation_s = 0;
  double checkpoint_s = 0;
  double recovery_s = 0;     // after ranks were lost
  double ending_s = 0;       // after the last step and its evaluation: trained weights, result
  int64_t test_samples = 0;  // of the last evaluation
  std::map<std::string, double> exchange_s;  // parts of exposed_comm_s by phase
  std::map<std::string, double> statistics;  // the strategy statistics
  std::vector<RankTimes> rank_times;         // empty if the start did not end
  bool evaluation_known = true;              // false: an evaluation has no time
  bool checkpoint_known = true;              // false: the start wrote checkpoints, and does not say how long
};

// The events of a run folder.
class RunTimes {
 public:
  // Adds one line. A line that is no event is counted. A line that is an event of no interest is ignored.
  void add_line(const std::string& line);
  // Computes the wall-clock time of the last start if it reported no result. Call it after the last line.
  void finish();

  std::vector<StartTimes> starts;  // the oldest first
  int64_t bad_lines = 0;           // lines that are no events, for example half-written ones

 private:
  struct Reading;
  // Reads one event. Returns false if the text is no event.
  bool read(const std::string& text);
  void add_event(const Reading& event);
  void begin(const Reading& event);
  void add_step(const Reading& event);
  void end(const Reading& event);
  void close();

  // Of the start that is being read.
  double began_ = 0, last_ = 0;  // times of its first and its last event, in seconds since 1970; 0: unknown
  double step_s_ = 0;            // sum over its steps
  bool closed_ = true;
};

// Reads the events of a run folder. Errors: ConfigError that names the folder and the remedy if there is no
// such folder, or no `run` event in its events.jsonl.
RunTimes read_run_times(const std::string& folder);

}  // namespace starling
