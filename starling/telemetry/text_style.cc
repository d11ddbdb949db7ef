#include "starling/telemetry/text_style.h"

#include <fmt/format.h>

#include <cmath>

namespace starling {

std::string paint(bool on, Color color, std::string_view text) {
  if (!on || color == Color::kPlain || text.empty()) return std::string(text);
  const char* code = "0";
  switch (color) {
    case Color::kBold:
      code = "1";
      break;
    case Color::kDim:
      code = "2";
      break;
    case Color::kGreen:
      code = "32";
      break;
    case Color::kYellow:
      code = "33";
      break;
    case Color::kRed:
      code = "31";
      break;
    case Color::kCyan:
      code = "36";
      break;
    case Color::kPlain:
      break;
  }
  return fmt::format("\x1b[{}m{}\x1b[0m", code, text);
}

std::string with_thousands(int64_t value) {
  std::string digits =
      fmt::format("{}", value < 0 ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value));
  for (int at = static_cast<int>(digits.size()) - 3; at > 0; at -= 3)
    digits.insert(static_cast<size_t>(at), 1, ',');
  return value < 0 ? "-" + digits : digits;
}

std::string counted(int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", with_thousands(count), noun, count == 1 ? "" : "s");
}

std::string ranks_text(int64_t ranks) {
  return counted(ranks, "rank");
}

std::string significant(double value) {
  if (!std::isfinite(value)) return fmt::format("{}", value);
  const double size = std::abs(value);
  if (size >= 1000 && size < 1e7) return with_thousands(std::llround(value));
  if (size != 0 && (size < 1e-4 || size >= 1e7)) return fmt::format("{:.3e}", value);
  return fmt::format("{:#.4g}", value);
}

std::string percent(double share) {
  if (!std::isfinite(share)) return "-";
  return fmt::format("{:.1f} %", 100 * share);
}

std::string duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0 || seconds > 1e10) return "-";
  if (seconds < 9.95) return fmt::format("{:.1f} s", seconds);
  const auto s = static_cast<int64_t>(std::llround(seconds));
  if (s < 60) return fmt::format("{} s", s);
  if (s < 3600) return fmt::format("{}:{:02}", s / 60, s % 60);
  if (s < 86400) return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
  return fmt::format("{} d {:02}:{:02}", s / 86400, s / 3600 % 24, s / 60 % 60);
}

std::string bytes_text(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 999.5 && unit + 1 < std::size(kUnits)) {
    value /= 1000;
    ++unit;
  }
  return fmt::format("{:.{}f} {}", value, unit == 0 || value >= 99.95 ? 0 : 1, kUnits[unit]);
}

int display_width(std::string_view text) {
  int width = 0;
  for (const char c : text) width += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return width;
}

std::string_view cut(std::string_view text, int columns) {
  int width = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool starts = (static_cast<unsigned char>(text[i]) & 0xC0) != 0x80;
    if (starts && width++ == columns) return text.substr(0, i);
  }
  return text;
}

std::string printable(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7f) c = '?';
  }
  return out;
}

std::string wrapped(std::string_view text, int columns, int used, int indent) {
  if (columns <= 0) return std::string(text);
  std::string out;
  int at = used;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    const std::string_view word = text.substr(begin, end - begin);
    const int width = display_width(word);
    if (begin > 0 && at + 1 + width > columns) {
      out += "\n" + std::string(static_cast<size_t>(indent), ' ');
      at = indent;
    } else if (begin > 0) {
      out += ' ';
      ++at;
    }
    out += word;
    at += width;
    begin = end + 1;
  }
  return out;
}

}  // namespace starling
