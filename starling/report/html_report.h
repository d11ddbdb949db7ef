// A comparison as one HTML file. The file needs no other file and no network: charts are SVG, style and
// script are inside.
#pragma once

#include <string>

#include "starling/report/comparison.h"

namespace starling {

// Returns the HTML text of the report.
std::string html_report(const Comparison& comparison);

// Writes the report to the file `path`. Errors: Error(kInternal) that names the file.
void write_report(const std::string& path, const Comparison& comparison);

}  // namespace starling
