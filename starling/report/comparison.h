// Comparison: runs that train the same model on the same data in different ways, and what formulas predict
// for them. `starling compare` and `starling tour` fill it; tables (table.h) and the report (html_report.h)
// show it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "starling/plan/memory.h"
#include "starling/report/run_record.h"

namespace starling {

// A section of the report: some of the runs in the same charts.
struct Picture {
  std::string title;
  std::string caption;
  std::vector<size_t> runs;  // indices into Comparison::runs
};

// The two volumes of a layer in FireCaffe (Iandola et al. 2016), in bytes per step.
struct LayerBytes {
  std::string name;
  double weights = 0;  // |W|, which data parallelism exchanges
  double inputs = 0;   // |D|, which model parallelism exchanges
};

// The model states of one rank in the chart of memory.
struct MemoryBar {
  std::string name;
  StateBytes bytes;  // of one rank
  bool measured = false;
};

// The measured time of one exchange of gradients.
struct ExchangeCurve {
  std::string name;                             // the algorithm: "ring"
  std::vector<std::pair<int, double>> seconds;  // (ranks, seconds)
};

// The runs and everything else that the report shows.
struct Comparison {
  std::string title;
  std::string lead;  // one or two sentences under the title
  std::vector<std::pair<std::string, std::string>>
      facts;  // what all runs share: {"model", "lenet5, 61,706 parameters"}, and settings of single runs
  std::vector<RunRecord> runs;  // at least one; the first has one rank and is the reference of all others
  Target target;
  std::vector<Picture> pictures;
  std::vector<LayerBytes> layers;  // for the global batch of the runs; may be empty
  std::vector<MemoryBar> memory;
  double exchange_bytes = 0;             // |W| of the measured exchanges
  double exchange_bytes_per_s = 0;       // of one stream between two of the ranks that measured
  std::vector<ExchangeCurve> exchanges;  // may be empty
};

// One run in numbers. A negative number means that the run has no such number.
struct Compared {
  std::string name;        // the run's flags
  std::string short_name;  // run_names.h
  std::string error;       // if it is not empty, the run failed and the numbers below are not set
  int64_t ranks = 1;
  double seconds_to_target = -1, samples_to_target = -1;
  double train_loss = 0, test_loss = -1, test_accuracy = -1;
  double samples_per_s = 0;
  double speed_up = -1;         // samples/s divided by those of the first run
  double target_speed_up = -1;  // the first run's time to the target divided by that of this run
  double bytes = 0;             // sent in steps by all ranks and servers
  double bytes_balance = -1;    // the largest bytes of a rank or server divided by their mean
  double exposed_share = 0;     // exposed communication divided by the time of the steps
  double seconds = 0;           // of the steps
};

// Returns the numbers of all runs, in their order.
std::vector<Compared> compared(const Comparison& comparison);

// Returns the short names of the runs, in their order (run_names.h).
std::vector<std::string> names_of(const Comparison& comparison);

// Returns a table for the terminal. The columns of the target are left out if there is no target.
std::string to_text(const Comparison& comparison);
// Returns one line of JSON: {"event":"compared",…}. Numbers that the run does not have are left out.
std::string to_json(const Compared& run);

}  // namespace starling
