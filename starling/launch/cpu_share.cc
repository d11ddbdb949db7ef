#include "starling/launch/cpu_share.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <map>
#include <set>
#include <tuple>
#include <utility>

namespace starling {
namespace {

int number_in(const std::string& path, int otherwise) {
  std::ifstream file(path);
  int value;
  return file >> value && value >= 0 ? value : otherwise;
}

}  // namespace

std::vector<Cpu> usable_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<Cpu> cpus;
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return cpus;
  std::map<std::pair<int, int>, int> cores;  // (package, core in the package) → number of the core
  for (int n = 0; n < CPU_SETSIZE; ++n) {
    if (!CPU_ISSET(n, &set)) continue;
    const std::string dir = fmt::format("/sys/devices/system/cpu/cpu{}/topology/", n);
    Cpu cpu;
    cpu.number = n;
    cpu.package = number_in(dir + "physical_package_id", 0);
    const int in_package = number_in(dir + "core_id", CPU_SETSIZE + n);
    cpu.core =
        cores.emplace(std::pair(cpu.package, in_package), static_cast<int>(cores.size())).first->second;
    cpus.push_back(cpu);
  }
  return cpus;
}

int count_cores(const std::vector<Cpu>& cpus) {
  std::set<int> cores;
  for (const Cpu& cpu : cpus) cores.insert(cpu.core);
  return static_cast<int>(cores.size());
}

std::vector<std::vector<int>> cpu_shares(std::vector<Cpu> cpus, int ranks, int threads) {
  if (ranks < 1) return {};
  const int least = std::max(1, threads);
  if (count_cores(cpus) / ranks < least) {
    for (Cpu& cpu : cpus) cpu.core = cpu.number;  // too few cores: hardware threads count as cores
  }
  const int cores = count_cores(cpus);
  if (cores / ranks < least) return {};
  std::map<std::pair<int, int>, std::vector<int>> by_core;  // (package, lowest CPU of the core) → its CPUs
  std::map<int, int> lowest;
  for (const Cpu& cpu : cpus) {
    const auto [at, fresh] = lowest.emplace(cpu.core, cpu.number);
    if (!fresh) at->second = std::min(at->second, cpu.number);
  }
  for (const Cpu& cpu : cpus) by_core[{cpu.package, lowest[cpu.core]}].push_back(cpu.number);
  std::vector<std::vector<int>> shares(static_cast<size_t>(ranks));
  int index = 0;
  for (const auto& [key, numbers] : by_core) {
    auto& share = shares[static_cast<size_t>(int64_t{index++} * ranks / cores)];
    share.insert(share.end(), numbers.begin(), numbers.end());
  }
  for (auto& share : shares) std::sort(share.begin(), share.end());
  return shares;
}

}  // namespace starling
