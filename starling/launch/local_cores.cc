#include "starling/launch/local_cores.h"

#include <fmt/format.h>

#include <set>
#include <sstream>

namespace starling {
namespace {

// Returns the key for the cores of a rank. Its value is "HOST_ID CPU CPU …".
std::string cores_key(int rank) {
  return fmt::format("cores/{}", rank);
}

}  // namespace

void put_cores(Store& store, int rank, const std::string& host_id, const std::vector<Cpu>& cpus) {
  std::string text = host_id;
  for (const Cpu& cpu : cpus) text += fmt::format(" {}", cpu.number);
  store.put(cores_key(rank), text);
}

LocalCores local_cores(Store& store, int rank, int world_size, Milliseconds timeout) {
  const auto split = [&](int of_rank) { return std::istringstream(store.get(cores_key(of_rank), timeout)); };
  std::string host_id;
  split(rank) >> host_id;
  LocalCores out{0, 0};
  std::set<int> cpus;
  for (int other = 0; other < world_size; ++other) {
    std::istringstream words = split(other);
    std::string other_host;
    words >> other_host;
    if (other_host != host_id) continue;
    ++out.processes;
    for (int cpu; words >> cpu;) cpus.insert(cpu);
  }
  out.cores = static_cast<int64_t>(cpus.size());
  return out;
}

}  // namespace starling
