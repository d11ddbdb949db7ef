// The answer of `starling why`: where the time of a run went, as text and as JSON.
#pragma once

#include <optional>
#include <string>

#include "starling/report/advice.h"
#include "starling/report/time_account.h"

namespace starling {

// What `starling why` says about a run.
struct RunAnswer {
  std::string folder;
  TimeAccount account;
  ChosenAdvice advice;
};

// Reads a run folder. Errors: those of read_run_times().
RunAnswer why(const std::string& folder);

// Returns the answer in a few lines of at most `columns` columns (0: no limit). A category with less than
// 0.05 % of the time is left out.
std::string to_text(const RunAnswer& answer, bool color, int columns);
// Returns the answer as one line of JSON: {"event":"why", …}.
std::string to_json(const RunAnswer& answer);

}  // namespace starling
