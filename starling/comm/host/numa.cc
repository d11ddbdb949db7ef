#include "starling/comm/host/numa.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <string>
#include <system_error>

namespace starling {

std::vector<int> usable_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> processors;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) {
    processors.resize(static_cast<size_t>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN))));
    std::iota(processors.begin(), processors.end(), 0);
    return processors;
  }
  for (int c = 0; c < CPU_SETSIZE; ++c) {
    if (CPU_ISSET(c, &set)) processors.push_back(c);
  }
  return processors;
}

std::vector<int> parse_cpu_list(const std::string& text) {
  constexpr int kMost = 1 << 16;
  std::vector<int> processors;
  const char* at = text.data();
  const char* const text_end = at + text.size();
  for (;; ++at) {
    int first = 0;
    const auto [end, error] = std::from_chars(at, text_end, first);
    if (error != std::errc()) break;
    int last = first;
    at = end;
    if (at != text_end && *at == '-') {
      const auto [last_end, last_error] = std::from_chars(at + 1, text_end, last);
      if (last_error != std::errc()) break;
      at = last_end;
    }
    if (first < 0 || last < first || last >= kMost || std::ssize(processors) + last - first >= kMost) break;
    for (int c = first; c <= last; ++c) processors.push_back(c);
    if (at == text_end || *at != ',') break;
  }
  return processors;
}

std::string cpu_list_text(const std::vector<int>& processors) {
  std::string text;
  for (size_t first = 0, end = 0; first < processors.size(); first = end) {
    end = first + 1;
    while (end < processors.size() && processors[end] == processors[end - 1] + 1) ++end;
    text += fmt::format("{}{}", text.empty() ? "" : ",", processors[first]);
    if (end > first + 1) text += fmt::format("-{}", processors[end - 1]);
  }
  return text;
}

int numa_node_of(const std::vector<int>& processors, const std::string& nodes) {
  if (processors.empty()) return -1;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(nodes, none)) {
    int number = 0;
    if (std::sscanf(entry.path().filename().c_str(), "node%d", &number) != 1) continue;
    std::ifstream file(entry.path() / "cpulist");
    std::string text;
    if (!std::getline(file, text)) continue;
    std::vector<int> near = parse_cpu_list(text);
    std::sort(near.begin(), near.end());
    if (std::includes(near.begin(), near.end(), processors.begin(), processors.end())) return number;
  }
  return -1;
}

NumaPlaces numa_places(const std::vector<int>& node_of, int local_rank) {
  NumaPlaces places;
  std::map<int, size_t> index;
  for (size_t r = 0; r < node_of.size(); ++r) {
    if (node_of[r] < 0) return {};
    const auto [at, added] = index.emplace(node_of[r], places.nodes.size());
    if (added) places.nodes.emplace_back();
    auto& ranks = places.nodes[at->second];
    if (static_cast<int>(r) == local_rank) {
      places.node = static_cast<int>(at->second);
      places.place = static_cast<int>(ranks.size());
    }
    ranks.push_back(static_cast<int>(r));
  }
  const bool pays = places.nodes.size() > 1 && places.ranks_each() > 1 &&
                    std::all_of(places.nodes.begin(), places.nodes.end(),
                                [&](const auto& n) { return n.size() == places.nodes.front().size(); });
  return pays ? places : NumaPlaces{};
}

}  // namespace starling
