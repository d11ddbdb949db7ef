// Pieces of HTML and SVG.
#pragma once

#include <string>
#include <string_view>

namespace starling {

// Returns `text` for use inside an element or an attribute.
std::string escaped(std::string_view text);

// Returns the classes of a series: "c0" for the neutral run 0, "c1" to "c8" for the runs 1 to 8. Later runs
// repeat these, with " dash".
std::string color_class(int run);

// Returns a <text> element. `anchor` is "start", "middle" or "end".
std::string svg_text(double x, double y, std::string_view text, std::string_view anchor = "start",
                     std::string_view style = "");

}  // namespace starling
