// UTF-8 as RFC 3629 defines it: no overlong forms, no halves of surrogate pairs, nothing above U+10FFFF.
#pragma once

#include <cstddef>
#include <string_view>

namespace starling {

constexpr char32_t kNoCodePoint = 0xFFFFFFFF;

// Returns the code point at `at`, which is below bytes.size(), and moves `at` behind it. Returns kNoCodePoint
// and leaves `at` if the bytes there are not UTF-8.
char32_t next_code_point(std::string_view bytes, size_t& at);

// Returns whether the whole text is UTF-8.
bool is_utf8(std::string_view text);

}  // namespace starling
