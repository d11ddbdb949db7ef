// The parts of `starling doctor`; each fills one section and names the problems that it saw.
#pragma once

#include <cstdint>
#include <string>

#include "starling/run/doctor.h"

namespace starling::doctor {

struct Findings {
  DoctorSection section;
  std::vector<DoctorProblem> problems;

  void text(std::string key, std::string name, std::string value);
  // `shown` is the text for people.
  void number(std::string key, std::string name, double value, std::string shown);
};

// Compiler, libtorch and its libraries.
Findings examine_build();
// Sockets, cores, caches and NUMA nodes by hwloc; instruction sets; a container's CPU quota.
Findings examine_cpu();
// Size, huge pages, /dev/shm, memfd.
Findings examine_memory();
// Measured: matrix products by MKL and oneDNN in fp32 (with oneDNN's error) and in bf16, and memory bandwidth.
Findings examine_arithmetic();
// Interfaces, addresses, RDMA devices.
Findings examine_network();
// Resource limits, ptrace, pidfd.
Findings examine_limits();

// The first line of a file, empty if it cannot be read.
std::string first_line(const std::string& path);
// Bytes of "MemAvailable" and the like in /proc/meminfo, 0 if absent.
uint64_t meminfo(const std::string& name);

}  // namespace starling::doctor
