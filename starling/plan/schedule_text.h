// Schedules as text, for files that a user writes or changes:
//
//   # a comment extends to the end of the line
//   schedule my-own
//   ranks 2
//   chunks 1              (optional; default 1)
//   micro-batches 2
//   rank 0: F0 SA0 F1 SA1
//           RG0 B0 RG1 B1
//   rank 1: RA0 F0 B0 SG0  RA1 F1 B1 SG1
//
// An action is its code (plan/pipeline_schedule.h), followed by the micro-batch. If there are several chunks,
// a dot and the chunk follow: "F3", "SG3.1".
#pragma once

#include <string>
#include <string_view>

#include "starling/plan/pipeline_schedule.h"

namespace starling {

// Parses a schedule. source: the file's name, for messages. The function checks only the syntax;
// check_schedule() checks whether the schedule can run. Errors: ConfigError at file:line:column.
Schedule parse_schedule(std::string_view text, const std::string& source);

// Reads a schedule from a file. Errors: ConfigError if the file cannot be read, and those of
// parse_schedule().
Schedule read_schedule(const std::string& path);

// Returns the schedule as text. parse_schedule(print_schedule(s)) has the actions of s.
std::string print_schedule(const Schedule& schedule);

}  // namespace starling
