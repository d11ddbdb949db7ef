#include "starling/base/physical_memory.h"

#include <fstream>

namespace starling {

uint64_t meminfo(const std::string& name) {
  std::ifstream file("/proc/meminfo");
  std::string key;
  uint64_t kilobytes = 0;
  std::string rest;
  while (file >> key >> kilobytes && std::getline(file, rest)) {
    if (key == name + ":") return rest.find("kB") != std::string::npos ? kilobytes * 1024 : kilobytes;
  }
  return 0;
}

}  // namespace starling
