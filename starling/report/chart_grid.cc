#include "starling/report/chart_grid.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "starling/report/markup.h"

namespace starling {

std::string html_figure(const std::string& svg, const std::string& caption) {
  if (svg.empty()) return "";
  std::string out = "<figure>" + svg + "<div class=\"below\">";
  if (!caption.empty()) out += "<figcaption>" + escaped(caption) + "</figcaption>";
  return out + "<button type=\"button\" class=\"save\" data-save=\"png\">Save PNG</button></div></figure>\n";
}

std::vector<int> figure_rows(int count) {
  if (count < 2) return std::vector<int>(static_cast<size_t>(std::max(0, count)), 1);
  std::vector<int> rows;
  if (count % 2 == 1) rows.push_back(3);
  if (count == 6) return {3, 3};
  for (int placed = count % 2 == 1 ? 3 : 0; placed < count; placed += 2) rows.push_back(2);
  return rows;
}

std::string html_figure_rows(const std::vector<std::string>& figures) {
  std::vector<std::string> shown;
  std::copy_if(figures.begin(), figures.end(), std::back_inserter(shown),
               [](const std::string& figure) { return !figure.empty(); });
  std::string out;
  size_t next = 0;
  for (const int row : figure_rows(static_cast<int>(shown.size()))) {
    out += fmt::format("<div class=\"charts of{}\">\n", row);
    for (int i = 0; i < row; ++i) out += shown[next++];
    out += "</div>\n";
  }
  return out;
}

}  // namespace starling
