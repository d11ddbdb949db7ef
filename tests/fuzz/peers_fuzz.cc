// Reads any text as the note of a failed rank or as a list of processors, which ranks write to the store.
// Both must be refused, or be equal after writing and reading.
#include <algorithm>
#include <string>
#include <vector>

#include "starling/comm/host/numa.h"
#include "starling/comm/network/failure_notes.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace starling;
  FuzzInput input(data, size);
  const int kind = input.byte() % 2;
  const std::string text = input.text(size);
  if (kind == 0) {
    const auto failure = parse_failure(text);
    if (!failure) return 0;
    require_property(failure->culprit >= -1);
    const auto again = parse_failure(failure_text(*failure));
    require_property(again && again->culprit == failure->culprit && again->reason == failure->reason &&
                     again->is_timeout == failure->is_timeout);
    return 0;
  }
  std::vector<int> processors = parse_cpu_list(text);
  require_property(processors.size() <= 1 << 16);
  for (const int processor : processors) require_property(processor >= 0 && processor < 1 << 16);
  if (processors.size() > 1024) return 0;  // sorting would take most of the time
  std::sort(processors.begin(), processors.end());
  processors.erase(std::unique(processors.begin(), processors.end()), processors.end());
  require_property(parse_cpu_list(cpu_list_text(processors)) == processors);
  return 0;
}
