#include "starling/report/html_table.h"

#include <fmt/format.h>

#include "starling/report/markup.h"
#include "starling/report/table.h"

namespace starling {

std::string html_table(const Comparison& comparison) {
  const Table table = table_of(comparison);
  const std::vector<std::string> names = names_of(comparison);
  std::string out = "<table class=\"runs\"><thead><tr>";
  for (const std::string& head : table.head) out += "<th scope=\"col\">" + escaped(head) + "</th>";
  out += "</tr></thead><tbody>\n";
  for (size_t r = 0; r < table.rows.size(); ++r) {
    const std::vector<std::string>& row = table.rows[r];
    out += fmt::format("<tr><th scope=\"row\" title=\"{}\">{}</th>", escaped(row[0]), escaped(names[r]));
    const bool failed = row.size() < table.head.size();
    if (failed)
      out += fmt::format("<td class=\"why\" colspan=\"{}\">{}</td>", table.head.size() - 1, escaped(row[1]));
    for (size_t i = 1; i < row.size() && !failed; ++i)
      out += fmt::format("<td data-label=\"{}\">{}</td>", escaped(table.head[i]), escaped(row[i]));
    out += "</tr>\n";
  }
  return out + "</tbody></table>\n";
}

std::string html_run_list(const Comparison& comparison) {
  const std::vector<std::string> names = names_of(comparison);
  std::string out = "<details class=\"commands\"><summary>Flags and command of each run</summary>\n";
  for (size_t i = 0; i < names.size(); ++i) {
    const RunRecord& run = comparison.runs[i];
    out += "<p><b>" + escaped(names[i]) + "</b>";
    if (run.name != names[i]) out += "<br><code>" + escaped(run.name) + "</code>";
    out += "<br><code>" + escaped(run.command) + "</code></p>\n";
  }
  return out + "</details>\n";
}

std::string html_column_notes(const Comparison& comparison) {
  std::string out = "<details><summary>What the columns mean</summary>\n<dl class=\"notes\">";
  const auto note = [&out](const char* column, const std::string& meaning) {
    out += fmt::format("<div><dt>{}</dt><dd>{}</dd></div>", column, escaped(meaning));
  };
  if (comparison.target.any()) {
    note("to target", "Time of the steps until the run reaches " + target_text(comparison.target) + ".");
    note("samples", "Samples that the run has trained on by then.");
    note("sooner by", "The first run's time to the target divided by this run's.");
  }
  note("loss", "Mean training loss of the last 20 steps.");
  note("speed-up", "Samples/s divided by those of the first run.");
  note("bytes", "Bytes that all ranks and servers send in steps.");
  note("balance", "The largest bytes of any rank or server divided by their mean.");
  note("waiting", "Share of the steps in which rank 0 neither computes nor reads data.");
  return out + "</dl></details>\n";
}

}  // namespace starling
