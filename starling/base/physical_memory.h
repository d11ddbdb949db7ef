// The memory of this machine, for limits on what others may make a rank allocate.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <string>

namespace starling {

// Returns the bytes of the machine's physical memory. Limits of control groups do not count.
inline uint64_t physical_memory() {
  return static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

// Returns the bytes of an entry of /proc/meminfo, such as "MemAvailable". Returns the number of an entry
// without a unit, and 0 if the entry is missing.
uint64_t meminfo(const std::string& name);

}  // namespace starling
