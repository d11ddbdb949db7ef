// The table of a comparison as HTML. On a narrow screen, each row becomes a card (report_style.h).
#pragma once

#include <string>

#include "starling/report/comparison.h"

namespace starling {

// Returns the table. Runs appear by their short names. A browser shows their flags on hover.
std::string html_table(const Comparison& comparison);

// Returns a list that readers can open, with the short name, the flags and the command of each run. Phones,
// which have no hover, need this list.
std::string html_run_list(const Comparison& comparison);

// Returns a text that explains the columns of the table.
std::string html_column_notes(const Comparison& comparison);

}  // namespace starling
