// Comparison: runs of the same model on the same data beside each other, and what the formulas say about them. What
// `starling compare` and `starling tour` gather, and tables and the page are made of.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "starling/plan/memory.h"
#include "starling/report/run_record.h"

namespace starling {

// Some of the runs, side by side under a caption.
struct Picture {
  std::string title;
  std::string caption;
  std::vector<size_t> runs;  // indices into Comparison::runs
};

// FireCaffe's two volumes of a layer, in bytes of a step.
struct LayerBytes {
  std::string name;
  double weights = 0;  // |W|: what data parallelism exchanges
  double inputs = 0;   // |D|: what model parallelism exchanges
};

struct MemoryBar {
  std::string name;
  StateBytes bytes;  // of one rank
  bool measured = false;
};

// Seconds of one exchange of gradients as measured, by number of ranks.
struct ExchangeCurve {
  std::string name;  // "ring"
  std::vector<std::pair<int, double>> seconds;
};

struct Comparison {
  std::string title;
  std::string lead;                                        // a sentence or two
  std::vector<std::pair<std::string, std::string>> facts;  // model, data, budget, machine …
  std::vector<RunRecord> runs;  // the first is one rank, which the others are compared with
  Target target;
  std::vector<Picture> pictures;
  std::vector<LayerBytes> layers;  // at the runs' batch; empty: not shown
  std::vector<MemoryBar> memory;
  double exchange_bytes = 0;             // |W| of the measured exchanges
  double exchange_bytes_per_s = 0;       // of one stream between two of those ranks
  std::vector<ExchangeCurve> exchanges;  // measured; may be empty
};

// One run in numbers; what has no meaning is negative.
struct Compared {
  std::string name;
  std::string error;  // not empty: the numbers are not there
  int64_t ranks = 1;
  double seconds_to_target = -1, samples_to_target = -1;
  double train_loss = 0, test_loss = -1, test_accuracy = -1;
  double samples_per_s = 0;
  double speed_up = -1;         // samples/s over those of the first run
  double target_speed_up = -1;  // the first run's time to the target over this one's
  double bytes = 0;             // all ranks and servers, in steps
  double bytes_balance = -1;
  double exposed_share = 0;  // exposed communication over the time of the steps
  double seconds = 0;        // of the steps
};

std::vector<Compared> compared(const Comparison& comparison);

// A table of lines; without the target's columns where there is no target.
std::string to_text(const Comparison& comparison);
// A line of JSON a run, {"event":"compared",…}.
std::string to_json(const Compared& run);

}  // namespace starling
