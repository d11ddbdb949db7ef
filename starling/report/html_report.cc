#include "starling/report/html_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>

#include "starling/base/error.h"
#include "starling/report/chart_grid.h"
#include "starling/report/curve_charts.h"
#include "starling/report/html_table.h"
#include "starling/report/markup.h"
#include "starling/report/report_data.h"
#include "starling/report/report_script.h"
#include "starling/report/report_style.h"
#include "starling/report/shared_cores.h"
#include "starling/report/theory_charts.h"
#include "starling/report/timeline_picture.h"

namespace starling {
namespace {

// Returns the legend: a button for each run of a picture. The button hides the run's lines in the section's
// charts.
std::string legend(const Comparison& comparison, const Picture& picture) {
  const std::vector<std::string> names = names_of(comparison);
  std::string out = "<div class=\"legend\">";
  for (size_t place = 0; place < picture.runs.size(); ++place) {
    const size_t run = picture.runs[place];
    const int color = color_of(picture, place);
    out += fmt::format(
        "<button type=\"button\" aria-pressed=\"true\" data-run=\"{}\" title=\"{}\"><svg viewBox=\"0 0 22 "
        "10\"><path class=\"{}\" d=\"M0 5L22 5\" fill=\"none\" stroke-width=\"3\"/></svg>{}</button>",
        color, escaped(comparison.runs[run].name), color_class(color), escaped(names[run]));
  }
  return out + "</div>\n";
}

// Returns the caption that names the runs without a line in a chart, or an empty text. The run of one rank
// sends 0 bytes.
std::string missing_lines(const LineChart& chart) {
  const std::vector<std::string> names = invisible_series(chart);
  if (names.empty()) return "";
  return fmt::format(
      "Without a line: {}. The axes have no place for 0 bytes or for values that are not finite.",
      fmt::join(names, ", "));
}

std::string timeline_figure(const std::string& name, const StepTimeline& timeline) {
  const double formula =
      planned_bubble(timeline.schedule, timeline.ranks, timeline.chunks, timeline.micro_batches);
  const std::string caption = fmt::format(
      "{}: schedule {} with {} micro-batches. Blue is forward, orange is backward, the number is the "
      "micro-batch. The formula for stages of equal time predicts {:.1f} % idle time.",
      name, timeline.schedule, timeline.micro_batches, 100 * formula);
  return html_figure(svg_of(timeline), caption);
}

std::string section(const Comparison& comparison, const Picture& picture) {
  std::string out = "<section><h2>" + escaped(picture.title) + "</h2>\n";
  if (!picture.caption.empty()) out += "<p>" + escaped(picture.caption) + "</p>\n";
  out += legend(comparison, picture);
  std::vector<std::string> figures;
  for (const LineChart& chart : curve_charts(comparison, picture))
    figures.push_back(html_figure(svg_of(chart), missing_lines(chart)));
  out += html_figure_rows(figures);
  if (!figures.empty())
    out += "<p class=\"note\">" + escaped(smoothing_note(smoothing_steps(comparison))) + "</p>\n";
  const std::vector<std::string> names = names_of(comparison);
  for (const size_t run : picture.runs) {
    const std::optional<StepTimeline>& timeline = comparison.runs[run].timeline;
    if (timeline) out += "<div class=\"wide\">" + timeline_figure(names[run], *timeline) + "</div>\n";
  }
  return out + "</section>\n";
}

std::string header(const Comparison& comparison) {
  std::string out =
      "<h1>" + escaped(comparison.title) + "</h1>\n<p>" + escaped(comparison.lead) + "</p>\n<dl>";
  for (const auto& [name, value] : comparison.facts)
    out += "<div><dt>" + escaped(name) + "</dt><dd>" + escaped(value) + "</dd></div>";
  out += "</dl>\n";
  const std::string warning = shared_cores_warning(comparison);
  if (!warning.empty()) out += "<p class=\"warning\" role=\"note\">" + escaped(warning) + "</p>\n";
  return out;
}

constexpr const char* kSaveButtons =
    "<div class=\"saves\"><button type=\"button\" class=\"save\" data-save=\"table\">Save table "
    "(CSV)</button><button type=\"button\" class=\"save\" data-save=\"curves\">Save curves "
    "(CSV)</button></div>\n";

}  // namespace

std::string html_report(const Comparison& comparison) {
  std::string out =
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">";
  out += "<title>" + escaped(comparison.title) + "</title><style>" + kReportStyle +
         "</style></head>\n<body><main>\n" + header(comparison);
  out += html_table(comparison) + kSaveButtons + html_column_notes(comparison) + html_run_list(comparison);
  for (const Picture& picture : comparison.pictures) out += section(comparison, picture);
  out += theory_section(comparison) + "</main><div id=\"tip\" role=\"status\"></div>\n";
  out += "<script type=\"application/json\" id=\"data\">" + report_data(comparison) + "</script>\n";
  return out + "<script>" + kReportScript + "</script>\n</body></html>\n";
}

void write_report(const std::string& path, const Comparison& comparison) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << html_report(comparison);
  file.close();
  if (!file) throw Error(ErrorCode::kInternal, path + " cannot be written. Is the disk full?");
}

}  // namespace starling
