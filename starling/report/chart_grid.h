// Figures in rows of two or three, so that no chart stands alone beside an empty place.
#pragma once

#include <string>
#include <vector>

namespace starling {

// Returns a <figure> with one chart, its button and its caption, or an empty string if `svg` is empty.
std::string html_figure(const std::string& svg, const std::string& caption = "");

// Returns how many of `count` figures each row holds, for example {3, 2} for 5. Only a single figure has a
// row to itself.
std::vector<int> figure_rows(int count);

// Lays out the figures that are not empty. On a narrow screen, each figure takes the whole width.
std::string html_figure_rows(const std::vector<std::string>& figures);

}  // namespace starling
