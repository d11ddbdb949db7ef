// The script of the report. Without it the report shows everything but saves nothing.
#pragma once

namespace starling {

// JavaScript. It shows the values of a chart's lines under the pointer. A legend button hides or shows the
// lines of its run. Other buttons save the table and the curves as CSV (from report_data.h), and a chart as
// PNG. The script opens no connection.
extern const char kReportScript[];

}  // namespace starling
