// `starling doctor`: what this machine and this build can do, measured, and what stands in the way of training.
#pragma once

#include <string>
#include <vector>

namespace starling {

struct DoctorFact {
  std::string key;   // a stable name for --json, e.g. "gemm_fp32_mkl_gflops"
  std::string name;  // for people; empty: only in --json, another fact's text shows it
  std::string text;  // the value for people, with its unit
  double value = 0;  // the value where it is a number
  bool number = false;
};

struct DoctorSection {
  std::string title;
  std::vector<DoctorFact> facts;
};

struct DoctorProblem {
  std::string what;
  std::string fix;      // what to type or to change
  bool serious = true;  // false: training works, but slower or on this host only
};

struct DoctorReport {
  std::vector<DoctorSection> sections;
  std::vector<DoctorProblem> problems;
};

// Examines build, CPU, memory, arithmetic, network and limits: about three seconds. Uses the number of ATen threads that is set, and
// leaves ATen's settings as it found them. What cannot be found out is left out of the report.
DoctorReport examine();

// A table for people; lines of at most `columns` columns where words allow it (0: no limit).
std::string to_text(const DoctorReport& report, bool color, int columns = 100);

// One object on one line: {"event":"doctor","build":{…},"cpu":{…},…,"problems":[{"what":…,"fix":…,"serious":…}]}.
std::string to_json(const DoctorReport& report);

}  // namespace starling
