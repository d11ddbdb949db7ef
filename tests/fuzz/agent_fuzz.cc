// Parses any bytes as lines between the launcher, the agents of hosts and the ranks. The parsers must refuse
// a line or return values that are equal after writing and parsing again.
#include <unistd.h>

#include <string>

#include "starling/base/error.h"
#include "starling/launch/fault.h"
#include "starling/launch/host_lines.h"
#include "starling/launch/line_reader.h"
#include "tests/fuzz/input.h"

namespace starling {
namespace {

void read_line(const std::string& line) {
  require_property(line.find('\n') == std::string::npos);
  if (const auto hello = parse_hello(line)) {
    const auto again = parse_hello(to_line(*hello));
    require_property(again && again->protocol == hello->protocol);
  }
  const HostLine parts = split_host_line(line);
  if (const auto number = split_number(parts.rest)) require_property(number->second.size() < line.size());
  for (const std::string& word : words_of_line(parts.rest)) require_property(!word.empty());
  if (const auto number = split_number(parts.rest); number && parts.word == "refuse")
    require_property(name_of(error_code_of(number->first)) != nullptr);
  if (const auto fault = parse_fault_line(3, line)) {
    require_property(fault->rank == 3 && fault->reported);
    require_property(!describe(*fault).empty());
  }
  if (const auto stuck = parse_stuck_line(line)) {
    const auto again = parse_stuck_line(stuck_line(3, *stuck));
    require_property(again && again->rank == stuck->rank);
  }
  if (parts.word != "job") return;
  try {
    const HostJob job = parse_job(parts.rest);
    require_property(job.ranks >= 1 && job.first >= 0 && job.first + job.ranks <= job.world);
    const std::string again = to_line(job);
    require_property(to_line(parse_job(split_host_line(again).rest)) == again);
  } catch (const Error&) {
  }
}

}  // namespace
}  // namespace starling

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace starling;
  int ends[2];
  if (size > 8192 || ::pipe(ends) != 0) return 0;
  require_property(::write(ends[1], data, size) == static_cast<ssize_t>(size));
  ::close(ends[1]);
  LineReader reader(UniqueFd(ends[0]), 4096);
  size_t bytes = 0;
  reader.finish([&](const std::string& line) {
    bytes += line.size();
    read_line(line);
  });
  require_property(bytes <= size);
  return 0;
}
