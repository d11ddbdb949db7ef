// Converts events to JSON: {"event":"step","step":12,…}. The fields have their names in event.h.
#pragma once

#include <string>

#include "starling/telemetry/event.h"

namespace starling {

// Returns the value of "event": "run", "step", "eval", "checkpoint", "message", "result" or "lost".
const char* name_of(const Event& event);

// Returns "debug", "info", "warning" or "error".
const char* name_of(Severity severity);

// Returns one line of JSON without a newline. "event" is the first field. A field that is not defined is left
// out, such as an accuracy, a test loss or a rank of -1, and an empty error. A number that is not finite
// becomes null. Bytes that are not UTF-8 are replaced. "time" and "run_id" of the stamp follow "event" if
// they are known.
std::string to_json(const Event& event, const EventStamp& stamp = {});

}  // namespace starling
