// The script of the report. Without it the report shows everything but saves nothing.
#pragma once

namespace starling {

// JavaScript. It shows the values of a chart's lines under the pointer, and hides a run's lines when its
// legend button is pressed. It saves the table and the curves as CSV (from report_data.h), and a chart as
// PNG. It opens no connection.
extern const char kReportScript[];

}  // namespace starling
