#include "starling/launch/slurm.h"

#include <charconv>

namespace starling {
namespace {

bool take_number(std::string_view& text, int& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || value < 0) return false;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return true;
}

bool take(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

}  // namespace

std::string first_slurm_host(std::string_view list) {
  std::string host;
  while (!list.empty() && list.front() != ',') {
    if (list.front() != '[') {
      host += list.front();
      list.remove_prefix(1);
      continue;
    }
    // Takes the first number of "[07-12,20]" with its zeros. A second bracket may follow
    // ("rack[1-2]node[1-4]").
    const size_t close = list.find(']');
    if (close == std::string_view::npos) return {};
    const std::string_view inside = list.substr(1, close - 1);
    const std::string_view first = inside.substr(0, inside.find_first_of("-,"));
    if (first.empty()) return {};
    host += first;
    list.remove_prefix(close + 1);
  }
  return host;
}

std::vector<int> slurm_tasks_per_node(std::string_view text) {
  constexpr int kMostNodes = 100'000;
  std::vector<int> tasks;
  while (!text.empty()) {
    int count = 0, times = 1;
    if (!take_number(text, count)) return {};
    if (take(text, "(x") && !(take_number(text, times) && take(text, ")"))) return {};
    if (times > kMostNodes - static_cast<int>(tasks.size())) return {};
    tasks.insert(tasks.end(), static_cast<size_t>(times), count);
    if (!text.empty() && !take(text, ",")) return {};
  }
  return tasks;
}

}  // namespace starling
