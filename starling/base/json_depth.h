// Parses JSON of a file that a stranger may have written.
#pragma once

#include <string>
#include <utility>

namespace starling {

// Parses a text or stream whose values are nested at most `deepest` levels deep. Copying a value and writing
// it as text recurse once per level, so a deeper file could overflow the stack. Errors: Json::exception for
// text that is no JSON or is nested deeper. Json: a type of nlohmann's library.
template <typename Json, typename Input>
Json parse_shallow(Input&& input, int deepest) {
  return Json::parse(std::forward<Input>(input), [deepest](int depth, typename Json::parse_event_t, Json&) {
    if (depth <= deepest) return true;
    throw Json::out_of_range::create(
        406, "the JSON text is nested deeper than " + std::to_string(deepest) + " levels", nullptr);
  });
}

}  // namespace starling
