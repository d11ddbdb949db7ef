#include "starling/base/utf8.h"

namespace starling {

char32_t next_code_point(std::string_view bytes, size_t& at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned char lead = byte(at);
  if (lead < 0x80) {
    ++at;
    return lead;
  }
  const int more = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : 1;
  if (lead < 0xC2 || lead > 0xF4 || bytes.size() - at <= static_cast<size_t>(more)) return kNoCodePoint;
  char32_t code = lead & (0x3F >> more);
  for (int i = 1; i <= more; ++i) {
    const unsigned char c = byte(at + static_cast<size_t>(i));
    if ((c & 0xC0) != 0x80) return kNoCodePoint;
    code = code << 6 | (c & 0x3F);
  }
  constexpr char32_t kLeast[] = {0, 0x80, 0x800, 0x10000};
  if (code < kLeast[more] || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) return kNoCodePoint;
  at += static_cast<size_t>(more) + 1;
  return code;
}

bool is_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();)
    if (next_code_point(text, at) == kNoCodePoint) return false;
  return true;
}

}  // namespace starling
