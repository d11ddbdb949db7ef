// Parses any text as a tuning file. The parser must refuse it with a ConfigError, or return entries that are
// equal after writing and parsing again.
#include <string>

#include "starling/base/error.h"
#include "starling/comm/choice/tuning.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace starling;
  try {
    const Tuning tuning = Tuning::parse(std::string(reinterpret_cast<const char*>(data), size), "f");
    const std::string text = tuning.text();
    require_property(Tuning::parse(text, "again").text() == text);
    for (const TuningEntry& e : tuning.entries()) {
      const TuningEntry* near = tuning.nearest(e.kind, e.bytes, e.ranks, e.hosts, e.link);
      require_property(near != nullptr && near->kind == e.kind && near->link == e.link);
    }
  } catch (const ConfigError&) {
  }
  return 0;
}
