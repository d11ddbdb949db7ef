// Numbers and colours as people read them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace starling {

enum class Color { kPlain, kBold, kDim, kGreen, kYellow, kRed, kCyan };

// Wraps `text` in the escape sequences of `color`; returns it unchanged when `on` is false.
std::string paint(bool on, Color color, std::string_view text);

std::string with_thousands(int64_t value);  // 1,234,567
std::string significant(
    double value);  // four significant digits, no exponent between 1e-4 and 1e7: 0.3127, 1,234
std::string percent(double share);     // 0.0312 → "3.1 %"
std::string duration(double seconds);  // "8 s", "2:05", "1:02:05", "3 d 04:00"; "-" if not finite or negative
std::string bytes_text(uint64_t bytes);  // "512 B", "1.2 MB", powers of 1000

// Columns that UTF-8 text takes, one a code point.
int display_width(std::string_view text);
// The first `columns` code points of `text`.
std::string_view cut(std::string_view text, int columns);
// `text` broken at spaces into lines of at most `columns` (0: no limit): the first begins at column `used`, the others with
// `indent` spaces. A longer word stays whole.
std::string wrapped(std::string_view text, int columns, int used, int indent);
// `text` with every control character but newline and tab replaced by '?', so that it cannot steer the
// terminal.
std::string printable(std::string_view text);

}  // namespace starling
