// Schedules as text, for files that a user writes or changes:
//
//   # whatever stands behind a # is a comment
//   schedule my-own
//   ranks 2
//   chunks 1              (may be left out: 1)
//   micro-batches 2
//   rank 0: F0 SA0 F1 SA1
//           RG0 B0 RG1 B1
//   rank 1: RA0 F0 B0 SG0  RA1 F1 B1 SG1
//
// An action is its code (pipeline_schedule.h), the micro-batch, and with several chunks a dot and the chunk: "F3", "SG3.1".
#pragma once

#include <string>
#include <string_view>

#include "starling/plan/pipeline_schedule.h"

namespace starling {

// source: the file's name, for messages. The text is only read here: check_schedule says whether the table can run.
// Errors: ConfigError at file:line:column.
Schedule parse_schedule(std::string_view text, const std::string& source);

// Errors: ConfigError when the file cannot be read, and those of parse_schedule.
Schedule read_schedule(const std::string& path);

// parse_schedule(print_schedule(s)) has the same actions.
std::string print_schedule(const Schedule& schedule);

}  // namespace starling
