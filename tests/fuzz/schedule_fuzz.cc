// Parses any text as a pipeline schedule. The parser must refuse it with a ConfigError, or return a schedule
// that is equal after printing and parsing, and that check_schedule() refuses or accepts.
#include <string>

#include "starling/base/error.h"
#include "starling/plan/schedule_check.h"
#include "starling/plan/schedule_text.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace starling;
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    const Schedule schedule = parse_schedule(text, "f");
    const std::string printed = print_schedule(schedule);
    require_property(print_schedule(parse_schedule(printed, "again")) == printed);
    check_schedule(schedule);
  } catch (const ConfigError&) {
  }
  return 0;
}
