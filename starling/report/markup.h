// Pieces of HTML and SVG.
#pragma once

#include <string>
#include <string_view>

namespace starling {

// Text for an element or an attribute.
std::string escaped(std::string_view text);

// The class of a series: "c0" neutral, "c1" to "c8" the colours, with " dash" from the second round on.
std::string color_class(int run);

// <text class=…>; anchor: start, middle or end.
std::string svg_text(double x, double y, std::string_view text, std::string_view anchor = "start",
                     std::string_view style = "");

}  // namespace starling
