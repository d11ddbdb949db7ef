// `starling doctor` measures what this machine and this build can do, and names the problems that hinder
// training.
#pragma once

#include <string>
#include <vector>

namespace starling {

// One fact of the report.
struct DoctorFact {
  std::string key;   // a stable name for --json, such as "gemm_fp32_mkl_gflops"
  std::string name;  // a name for people; empty: only in --json, because another fact's text shows the value
  std::string text;  // the value for people, with its unit
  double value = 0;  // the value if it is a number
  // true if `value` is valid
  bool number = false;
};

// Facts under one title.
struct DoctorSection {
  std::string title;
  std::vector<DoctorFact> facts;
};

// A problem of the machine or the build, with its remedy.
struct DoctorProblem {
  std::string what;
  std::string fix;      // what to type or to change
  bool serious = true;  // false: training works, but slower or only on this host
};

// The result of an examination.
struct DoctorReport {
  std::vector<DoctorSection> sections;
  std::vector<DoctorProblem> problems;
};

// Examines build, CPU, memory, arithmetic, network and limits. The examination takes about three seconds. It
// uses the current number of ATen threads and restores ATen's settings. The report leaves out what cannot be
// determined.
DoctorReport examine();

// Returns a table for people. Lines have at most `columns` columns if the words allow it; 0 means no limit.
std::string to_text(const DoctorReport& report, bool color, int columns = 100);

// Returns one object on one line:
// {"event":"doctor","build":{…},"cpu":{…},…,"problems":[{"what":…,"fix":…,"serious":…}]}.
std::string to_json(const DoctorReport& report);

}  // namespace starling
