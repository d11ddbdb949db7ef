// Parses JSON of a file that a stranger may have written.
#pragma once

#include <string>
#include <string_view>

namespace starling {

// Parses a text whose values are nested at most `deepest` levels deep. Copying a value and writing it as text
// recurse once per level, so a deeper file could overflow the stack. A zero byte is refused, because
// nlohmann's parser takes it for the end of the text and ignores what follows. Errors: Json::exception for
// text that is no JSON or is nested deeper. Json: a type of nlohmann's library.
template <typename Json>
Json parse_shallow(std::string_view text, int deepest) {
  if (text.find('\0') != std::string_view::npos)
    throw Json::out_of_range::create(406, "the JSON text has a zero byte", nullptr);
  return Json::parse(text.begin(), text.end(), [deepest](int depth, typename Json::parse_event_t, Json&) {
    if (depth <= deepest) return true;
    throw Json::out_of_range::create(
        406, "the JSON text is nested deeper than " + std::to_string(deepest) + " levels", nullptr);
  });
}

}  // namespace starling
