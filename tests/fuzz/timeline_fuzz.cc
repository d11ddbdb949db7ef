// Reads any text as the timeline of a pipeline and draws it. The reader and the picture must refuse it with a
// ConfigError, or each number in the picture must be finite.
#include <string>

#include "starling/base/error.h"
#include "starling/report/timeline.h"
#include "starling/report/timeline_picture.h"
#include "tests/fuzz/file_in_memory.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace starling;
  static FileInMemory file;
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    StepTimeline timeline = read_timeline(file.with(text));
    require_property(timeline.ranks >= 1 && timeline.chunks >= 1 && timeline.micro_batches >= 1);
    timeline.schedule = "schedule";
    const std::string picture = svg_of(timeline);
    require_property(picture.find("nan") == std::string::npos && picture.find("inf") == std::string::npos);
  } catch (const ConfigError&) {
  }
  return 0;
}
