// The parts of `starling doctor`. Each fills one section and names the problems that it found.
#pragma once

#include <cstdint>
#include <string>

#include "starling/commands/doctor.h"

namespace starling::doctor {

// One section and its problems.
struct Findings {
  DoctorSection section;
  std::vector<DoctorProblem> problems;

  // Adds a fact with a text value.
  void text(std::string key, std::string name, std::string value);
  // Adds a fact with a number. `shown` is the text for people.
  void number(std::string key, std::string name, double value, std::string shown);
};

// Examines the compiler, libtorch and its libraries.
Findings examine_build();
// Examines sockets, cores, caches and NUMA nodes, instruction sets and a container's CPU quota.
Findings examine_cpu();
// Examines the memory's size, huge pages, /dev/shm and memfd.
Findings examine_memory();
// Measures matrix products by MKL and oneDNN in fp32 (with oneDNN's error) and in bf16, and the memory
// bandwidth.
Findings examine_arithmetic();
// Examines interfaces, addresses, the congestion control of TCP, and RDMA devices.
Findings examine_network();
// Examines resource limits, ptrace and pidfd.
Findings examine_limits();

// Returns the first line of a file. Empty if the file cannot be read.
std::string first_line(const std::string& path);

}  // namespace starling::doctor
