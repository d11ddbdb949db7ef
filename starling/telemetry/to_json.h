// The one form of an event as text: {"event":"step","step":12,…}. Field names are those of event.h.
#pragma once

#include <string>

#include "starling/telemetry/event.h"

namespace starling {

// The name under "event": "run", "step", "eval", "checkpoint", "message" or "result".
const char* name_of(const Event& event);

// "debug", "info", "warning" or "error".
const char* name_of(Severity severity);

// One line of JSON without its newline; "event" comes first. A field without a meaning here (an accuracy or a
// test loss of -1, a rank of -1, an empty error) is left out; a number that is not finite is null. Bytes that
// are not UTF-8 are replaced.
std::string to_json(const Event& event);

}  // namespace starling
