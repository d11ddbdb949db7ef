#include "starling/commands/cpu_topology.h"

#include <cctype>
#include <charconv>
#include <filesystem>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "starling/commands/doctor_parts.h"

namespace starling::doctor {
namespace {

namespace fs = std::filesystem;

// Returns the entries of a folder whose names are `prefix` and a number.
std::vector<std::string> numbered(const std::string& folder, std::string_view prefix) {
  std::vector<std::string> paths;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename();
    if (name.size() > prefix.size() && name.starts_with(prefix) &&
        name.find_first_not_of("0123456789", prefix.size()) == std::string::npos)
      paths.push_back(entry.path());
  }
  return paths;
}

// Returns the number at the beginning of a file, or 0.
int64_t number_in(const std::string& path) {
  const std::string line = first_line(path);
  int64_t value = 0;
  std::from_chars(line.data(), line.data() + line.size(), value);
  return value;
}

// Returns the bytes of a size such as "48K" or "32M".
uint64_t size_in(const std::string& path) {
  const std::string line = first_line(path);
  uint64_t value = 0;
  const char* end = std::from_chars(line.data(), line.data() + line.size(), value).ptr;
  const char unit = end < line.data() + line.size() ? *end : ' ';
  return unit == 'K' ? value << 10 : unit == 'M' ? value << 20 : unit == 'G' ? value << 30 : value;
}

}  // namespace

CpuTopology read_cpu_topology(const std::string& system) {
  CpuTopology out;
  std::set<int64_t> packages;
  std::set<std::pair<int64_t, std::string>> cores;
  std::set<std::tuple<int64_t, std::string, std::string>>
      caches;  // level, type, the processors that share it
  for (const std::string& cpu : numbered(system + "/cpu", "cpu")) {
    const std::string siblings = first_line(cpu + "/topology/thread_siblings_list");
    if (siblings.empty()) continue;  // the processor is offline
    ++out.units;
    const int64_t package = number_in(cpu + "/topology/physical_package_id");
    packages.insert(package);
    cores.emplace(package, siblings);
    for (const std::string& cache : numbered(cpu + "/cache", "index")) {
      const std::string type = first_line(cache + "/type");
      if (type == "Instruction") continue;
      const int64_t level = number_in(cache + "/level");
      if (!caches.emplace(level, type, first_line(cache + "/shared_cpu_list")).second) continue;
      CacheLevel& of_level = out.caches[static_cast<int>(level)];
      if (of_level.count++ == 0) of_level.bytes = size_in(cache + "/size");
    }
  }
  out.packages = static_cast<int>(packages.size());
  out.cores = static_cast<int>(cores.size());
  const auto nodes = static_cast<int>(numbered(system + "/node", "node").size());
  out.numa_nodes = out.units > 0 && nodes == 0 ? 1 : nodes;
  return out;
}

}  // namespace starling::doctor
