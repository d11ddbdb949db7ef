#include "starling/report/markup.h"

#include <fmt/format.h>

namespace starling {

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string color_class(int run) {
  constexpr int kColors = 8;
  if (run <= 0) return "c0";
  return fmt::format("c{}{}", (run - 1) % kColors + 1, run > kColors ? " dash" : "");
}

std::string svg_text(double x, double y, std::string_view text, std::string_view anchor,
                     std::string_view style) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>", x, y, anchor,
                     style.empty() ? "" : fmt::format(" class=\"{}\"", style), escaped(text));
}

}  // namespace starling
