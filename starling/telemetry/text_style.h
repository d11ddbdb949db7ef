// Formats numbers, durations and colors for people.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace starling {

enum class Color { kPlain, kBold, kDim, kGreen, kYellow, kRed, kCyan };

// Returns `text` between the escape sequences of `color`, or unchanged if `on` is false.
std::string paint(bool on, Color color, std::string_view text);

std::string with_thousands(int64_t value);                  // 1,234,567
std::string counted(int64_t count, std::string_view noun);  // "1 step", "1,200 steps"
std::string ranks_text(int64_t ranks);                      // "1 rank", "2 ranks"
std::string significant(
    double value);  // at least four significant digits, no exponent between 1e-4 and 1e7: 0.3127, 12,345
std::string percent(double share);       // 0.0312 → "3.1 %"
std::string duration(double seconds);    // "8.0 s", "1:02:05", "3 d 04:00"; "-" if not finite or negative
std::string bytes_text(uint64_t bytes);  // "512 B", "1.2 MB", powers of 1000

// Returns the number of columns of UTF-8 text. Each code point counts as one column.
int display_width(std::string_view text);
// Returns the first `columns` code points of `text`.
std::string_view cut(std::string_view text, int columns);
// Breaks `text` at spaces into lines of at most `columns` columns (0: no limit). The first line starts at
// column `used`, and the other lines start with `indent` spaces. A longer word is not broken.
std::string wrapped(std::string_view text, int columns, int used, int indent);
// Replaces every control character except newline and tab by '?', so that the text cannot control the
// terminal.
std::string printable(std::string_view text);

}  // namespace starling
